"""When the person behind a session last proved who they are: accounts and tokens are changed only soon after it."""

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

STATEMENTS = (
    "ALTER TABLE sessions ADD COLUMN proven_at timestamptz",
    "UPDATE sessions SET proven_at = created_at",
    "ALTER TABLE sessions ALTER COLUMN proven_at SET NOT NULL",
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.get_bind().exec_driver_sql(statement)
