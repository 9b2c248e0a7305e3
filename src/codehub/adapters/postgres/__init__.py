"""PostgreSQL: the two single-writer stores, the ledger, fenced leadership and the change feed (contracts 3 and 4).

The SQL is in statements.py (that of backups in backup.py), the schema in migrations/. A database that does not answer
is Unreachable, never a guess.
"""

from codehub.adapters.postgres.database import PostgresDatabase
from codehub.adapters.postgres.schema import SchemaMismatch, check_schema, migrate

__all__ = ["PostgresDatabase", "SchemaMismatch", "check_schema", "migrate"]
