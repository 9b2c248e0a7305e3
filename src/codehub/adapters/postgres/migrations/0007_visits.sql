-- Who was let in at a workspace's own host, for as long as the session or token that made their ticket. A ticket knows
-- its token too, and whether whoever made it asked for the workspace to be opened.

ALTER TABLE tickets ADD COLUMN token_id uuid REFERENCES api_tokens (id);
ALTER TABLE tickets ADD COLUMN wakes boolean NOT NULL DEFAULT false;

-- Of a session that ends, the visits go too. Tokens are never deleted, only revoked.
CREATE TABLE visits (
    hash bytea PRIMARY KEY CHECK (length(hash) = 32),
    user_id uuid NOT NULL REFERENCES users (id),
    session_hash bytea REFERENCES sessions (token_hash) ON DELETE CASCADE,
    token_id uuid REFERENCES api_tokens (id),
    workspace_id uuid NOT NULL,
    port integer CHECK (port BETWEEN 1 AND 65535),
    created_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL
);

CREATE INDEX visits_of_session ON visits (session_hash);
CREATE INDEX visits_expire ON visits (expires_at);
