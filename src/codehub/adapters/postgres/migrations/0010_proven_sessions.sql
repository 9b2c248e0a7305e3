-- When the person behind a session last proved who they are: accounts and tokens are changed only soon after it.

ALTER TABLE sessions ADD COLUMN proven_at timestamptz;
UPDATE sessions SET proven_at = created_at;
ALTER TABLE sessions ALTER COLUMN proven_at SET NOT NULL;
