"""Bugs planted one at a time in a copy of the source, to show that the search over fault schedules finds each."""
