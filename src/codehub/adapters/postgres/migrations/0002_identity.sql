-- Users, their sessions and tokens, templates, repeated requests, and the audit log. The lists of values are frozen
-- here: a revision must not change when the code does.

CREATE TABLE users (
    id uuid PRIMARY KEY,
    username text NOT NULL,
    role text NOT NULL,
    password_hash text,
    issuer text,
    subject text,
    max_running integer,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    disabled_at timestamptz,
    CONSTRAINT username_is_one CHECK (username ~ '^[a-z0-9._-]{1,64}$'),
    CONSTRAINT role_known CHECK (role IN ('user', 'admin')),
    CONSTRAINT identity_is_whole CHECK ((issuer IS NULL) = (subject IS NULL)),
    CONSTRAINT max_running_not_negative CHECK (max_running >= 0)
);

-- Bytewise, so that the order of pages is the same on every machine.
CREATE UNIQUE INDEX users_username ON users (lower(username) COLLATE "C");
CREATE UNIQUE INDEX users_identity ON users (issuer, subject);

CREATE TABLE sessions (
    token_hash bytea PRIMARY KEY CHECK (length(token_hash) = 32),
    user_id uuid NOT NULL REFERENCES users (id),
    created_at timestamptz NOT NULL,
    last_seen_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    address text NOT NULL,
    agent text NOT NULL
);

CREATE INDEX sessions_of_user ON sessions (user_id);

CREATE TABLE api_tokens (
    id uuid PRIMARY KEY,
    user_id uuid NOT NULL REFERENCES users (id),
    name text NOT NULL,
    token_hash bytea NOT NULL UNIQUE CHECK (length(token_hash) = 32),
    scopes text[] NOT NULL,
    created_at timestamptz NOT NULL,
    expires_at timestamptz,
    last_used_at timestamptz,
    revoked_at timestamptz,
    CONSTRAINT scopes_known CHECK (scopes <@ ARRAY['read', 'write', 'admin']),
    CONSTRAINT scopes_not_empty CHECK (cardinality(scopes) > 0)
);

CREATE INDEX api_tokens_of_user ON api_tokens (user_id) WHERE revoked_at IS NULL;

-- Of a session that ends, the tickets go too.
CREATE TABLE tickets (
    hash bytea PRIMARY KEY CHECK (length(hash) = 32),
    user_id uuid NOT NULL REFERENCES users (id),
    session_hash bytea REFERENCES sessions (token_hash) ON DELETE CASCADE,
    workspace_id uuid NOT NULL,
    port integer CHECK (port BETWEEN 1 AND 65535),
    created_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    used_at timestamptz
);

CREATE INDEX tickets_of_session ON tickets (session_hash);

CREATE TABLE provider_sign_ins (
    hash bytea PRIMARY KEY CHECK (length(hash) = 32),
    next_path text NOT NULL,
    created_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL
);

CREATE TABLE login_failures (
    key text PRIMARY KEY,
    failures integer NOT NULL CHECK (failures >= 0),
    at timestamptz NOT NULL
);

CREATE INDEX login_failures_at ON login_failures (at);

CREATE TABLE idempotency_keys (
    user_id uuid NOT NULL REFERENCES users (id),
    key text NOT NULL CHECK (length(key) BETWEEN 1 AND 255),
    request_hash bytea NOT NULL,
    workspace_id uuid NOT NULL,
    response jsonb,
    created_at timestamptz NOT NULL,
    PRIMARY KEY (user_id, key)
);

CREATE INDEX idempotency_keys_created ON idempotency_keys (created_at);

CREATE TABLE templates (
    name text PRIMARY KEY CHECK (name ~ '^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$'),
    description text NOT NULL,
    image_ref text NOT NULL,
    env jsonb NOT NULL,
    cpu double precision CHECK (cpu > 0),
    memory_bytes bigint CHECK (memory_bytes > 0),
    disk_bytes bigint CHECK (disk_bytes > 0),
    pids bigint CHECK (pids > 0),
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    disabled_at timestamptz
);

INSERT INTO templates (name, description, image_ref, env)
VALUES ('default', 'The runtime''s own image.', '', '{}');

CREATE TABLE audit (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    actor text NOT NULL,
    action text NOT NULL,
    subject text NOT NULL,
    details jsonb NOT NULL,
    address text NOT NULL
);

CREATE INDEX audit_of_subject ON audit (subject, id DESC);
CREATE INDEX audit_of_actor ON audit (actor, id DESC);
CREATE TRIGGER append_only BEFORE UPDATE ON audit FOR EACH ROW EXECUTE FUNCTION refuse_rewriting();
