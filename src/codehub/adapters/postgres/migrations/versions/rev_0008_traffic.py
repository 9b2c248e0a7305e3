"""What passed the front doors, minute by minute, for a day."""

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

STATEMENT = """
CREATE TABLE traffic (
    minute timestamptz PRIMARY KEY,
    requests bigint NOT NULL CHECK (requests >= 0),
    socket_seconds double precision NOT NULL CHECK (socket_seconds >= 0)
)
"""


def upgrade() -> None:
    op.get_bind().exec_driver_sql(STATEMENT)
