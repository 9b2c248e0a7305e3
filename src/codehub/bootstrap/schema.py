"""Bringing a database up to this program's schema, for which alone the tools of migrations are loaded."""

from codehub.adapters.postgres.migration import migrate

__all__ = ["migrate"]
