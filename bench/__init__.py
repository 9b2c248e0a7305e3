"""Measurements, each a module of its own: `python -m bench.controller`. `python -m bench` runs them all."""
