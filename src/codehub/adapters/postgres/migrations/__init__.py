"""Alembic's script directory. A released revision is never edited: a change of the schema is a new revision."""
