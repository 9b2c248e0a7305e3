"""A start that is under way holds its slot, whatever is wished meanwhile: its container may be there before it is seen.
An expression cannot be changed in place, so the column is made anew, and its index with it.
"""

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

STATEMENTS = (
    "ALTER TABLE workspaces DROP COLUMN slot",
    """
    ALTER TABLE workspaces ADD COLUMN slot text NOT NULL GENERATED ALWAYS AS (
        CASE
            WHEN deleted_at IS NOT NULL THEN 'free'
            WHEN operation = 'STARTING' THEN 'held'
            WHEN coalesce(conditions -> 'infra.container_ready' ->> 'reason', 'NoContainer') <> 'NoContainer'
                THEN 'held'
            WHEN desired_state <> 'RUNNING' THEN 'free'
            WHEN phase = 'ERROR' THEN 'perhaps'
            ELSE 'held'
        END
    ) STORED
    """,
    "CREATE INDEX workspaces_slots ON workspaces (slot, owner_id) WHERE slot <> 'free'",
)


def upgrade() -> None:
    connection = op.get_bind()
    for statement in STATEMENTS:
        connection.exec_driver_sql(statement)
