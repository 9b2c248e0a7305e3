"""The migration of a database to this program's schema, apart so that nothing else loads the tools for it."""

from codehub.adapters.postgres.migration import migrate

__all__ = ["migrate"]
