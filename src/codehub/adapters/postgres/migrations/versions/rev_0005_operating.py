"""What operating asks for. The old rows of tables that only grow: such an index on an append-only table is tiny. And
whether this database came out of a backup: what was made after `backup_at` and before `restored_at` it cannot know.
"""

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

STATEMENTS = (
    "CREATE INDEX workspace_events_at ON workspace_events USING brin (at)",
    "CREATE INDEX audit_at ON audit USING brin (at)",
    "ALTER TABLE installation ADD COLUMN backup_at timestamptz, ADD COLUMN restored_at timestamptz",
)


def upgrade() -> None:
    connection = op.get_bind()
    for statement in STATEMENTS:
        connection.exec_driver_sql(statement)
