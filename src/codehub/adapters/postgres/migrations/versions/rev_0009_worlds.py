"""Which runtime holds the homes and which store the archives, so that another one's answers are not believed."""

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

STATEMENT = """
CREATE TABLE worlds (
    backend text PRIMARY KEY CHECK (backend IN ('runtime', 'archives')),
    identity text NOT NULL,
    since timestamptz NOT NULL
)
"""


def upgrade() -> None:
    op.get_bind().exec_driver_sql(STATEMENT)
