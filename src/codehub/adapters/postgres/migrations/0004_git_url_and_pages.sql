-- What the API lists and asks for: where a workspace's code comes from, and the orders of its pages.

ALTER TABLE workspaces ADD COLUMN git_url text CONSTRAINT git_url_is_short CHECK (length(git_url) <= 1000);
CREATE INDEX workspaces_page ON workspaces (created_at DESC, id DESC) WHERE deleted_at IS NULL;
CREATE INDEX workspaces_page_of_owner ON workspaces (owner_id, created_at DESC, id DESC) WHERE deleted_at IS NULL;

-- A workspace names its owner as text.
CREATE UNIQUE INDEX users_as_owner ON users ((id::text));
