"""What we need from outside, as protocols. Each promise in a docstring is a test in tests/contracts."""
