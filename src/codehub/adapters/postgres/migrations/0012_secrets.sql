-- What people keep for their workspaces, and admins for a template: encrypted values, and what is no secret.

-- Whose row it is stands in two columns that refer to their tables, and in one that names both alike.
CREATE TABLE secrets (
    user_id uuid REFERENCES users (id) ON DELETE CASCADE,
    template text REFERENCES templates (name) ON DELETE CASCADE,
    owner text NOT NULL GENERATED ALWAYS AS (coalesce('user:' || user_id::text, 'template:' || template)) STORED,
    kind text NOT NULL,
    name text NOT NULL CHECK (length(name) BETWEEN 1 AND 300),
    public text NOT NULL,
    key_id text NOT NULL,
    sealed bytea NOT NULL,
    updated_at timestamptz NOT NULL,
    PRIMARY KEY (owner, kind, name),
    CONSTRAINT one_owner CHECK (num_nonnulls(user_id, template) = 1),
    CONSTRAINT kind_known CHECK (kind IN ('variable', 'git_token', 'ssh_key')),
    CONSTRAINT templates_have_variables CHECK (template IS NULL OR kind = 'variable')
);

CREATE INDEX secrets_of_key ON secrets (key_id);

CREATE TABLE profiles (
    user_id uuid PRIMARY KEY REFERENCES users (id) ON DELETE CASCADE,
    git_name text,
    git_email text,
    dotfiles_url text,
    dotfiles_command text,
    CONSTRAINT git_identity_is_whole CHECK ((git_name IS NULL) = (git_email IS NULL)),
    CONSTRAINT dotfiles_are_whole CHECK ((dotfiles_url IS NULL) = (dotfiles_command IS NULL))
);
