"""What people and timers may ask; the API, the front door and the TTL runner all come through here."""
