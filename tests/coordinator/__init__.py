"""The coordinator's rooms, each with memory twins, and the whole of it killed at every call it makes."""
