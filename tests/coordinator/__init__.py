"""Tests of the coordinator: each component on memory backends, and the whole of it interrupted at every call it
makes.
"""
