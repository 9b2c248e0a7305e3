"""What stands outside, each behind a port: named by technology and role, and chosen by bootstrap alone."""
