"""The implementations of the ports: each named by technology and role, and chosen by bootstrap alone."""
