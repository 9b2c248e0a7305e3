"""Upgraded connections: bytes passed on unchanged, and the frames read along on the way."""
