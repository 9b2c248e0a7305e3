-- Finding the old rows of tables that only grow: such an index on an append-only table is tiny. And
-- whether this database came out of a backup: what was made after `backup_at` and before `restored_at` it cannot know.

CREATE INDEX workspace_events_at ON workspace_events USING brin (at);
CREATE INDEX audit_at ON audit USING brin (at);
ALTER TABLE installation ADD COLUMN backup_at timestamptz, ADD COLUMN restored_at timestamptz;
