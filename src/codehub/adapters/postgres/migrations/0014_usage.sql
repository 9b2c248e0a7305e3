-- What each running workspace used, sample by sample, for an hour. Unlogged: a crash may empty it, and costs nothing else.

CREATE UNLOGGED TABLE workspace_usage (
    workspace_id uuid NOT NULL,
    at timestamptz NOT NULL,
    cpu real,
    cpu_limit real,
    memory_bytes bigint,
    memory_limit_bytes bigint,
    disk_used_bytes bigint,
    disk_limit_bytes bigint,
    disk_total_bytes bigint,
    disk_free_bytes bigint,
    PRIMARY KEY (workspace_id, at)
);

CREATE INDEX workspace_usage_at ON workspace_usage (at);
