"""The controller: one leader makes reality match what people want (contracts 2, 4, 10)."""
