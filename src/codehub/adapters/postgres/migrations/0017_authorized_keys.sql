-- The SSH public keys that people registered. A key says who somebody is, so it is in the table once.

CREATE TABLE authorized_keys (
    id uuid PRIMARY KEY,
    user_id uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    name text NOT NULL CHECK (length(name) BETWEEN 1 AND 100),
    algorithm text NOT NULL,
    data bytea NOT NULL,
    comment text NOT NULL,
    fingerprint text NOT NULL,
    created_at timestamptz NOT NULL,
    last_used_at timestamptz
);

CREATE UNIQUE INDEX authorized_keys_fingerprint ON authorized_keys (fingerprint);
CREATE INDEX authorized_keys_of_user ON authorized_keys (user_id);
