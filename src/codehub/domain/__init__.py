"""The pure rules: values and now in, frozen values out. No I/O, no clock, no randomness, no third-party import."""
