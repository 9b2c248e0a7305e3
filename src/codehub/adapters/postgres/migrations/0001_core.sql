-- The core's tables. The lists of values are frozen here on purpose: a revision must not change when
-- the code does. tests/contracts/test_schema.py checks that the newest schema and the domain's table still agree.

CREATE TABLE workspaces (
    id uuid PRIMARY KEY,
    owner_id text NOT NULL,
    name text NOT NULL,
    slug text NOT NULL,
    description text NOT NULL,
    memo text NOT NULL,
    template text NOT NULL,
    image_ref text NOT NULL,
    runtime text NOT NULL,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    version bigint NOT NULL,

    desired_state text NOT NULL,
    desired_by text NOT NULL,
    recover_action text,
    recover_requested_at timestamptz,
    restore_from text,
    restore_requested_at timestamptz,
    undelete_requested_at timestamptz,
    deleted_at timestamptz,
    purged_at timestamptz,
    standby_ttl_seconds integer,
    archive_ttl_seconds integer,
    last_access_at timestamptz,

    conditions jsonb NOT NULL,
    phase text NOT NULL,
    phase_changed_at timestamptz NOT NULL,
    observed_at timestamptz,
    operation text NOT NULL,
    op_started_at timestamptz,
    op_id uuid,
    op_progress jsonb,
    op_progress_at timestamptz,
    op_excused_seconds double precision NOT NULL,
    archive_op_id uuid,
    archive_key text,
    home_store_key text,
    home_ctx jsonb NOT NULL,
    error_reason text,
    error_count integer NOT NULL,
    error_info jsonb,
    retry_at timestamptz,
    recover_handled_at timestamptz,
    restore_handled_at timestamptz,
    undelete_handled_at timestamptz,

    at_rest boolean NOT NULL GENERATED ALWAYS AS (
        operation = 'NONE' AND CASE
            WHEN deleted_at IS NOT NULL THEN phase = 'DELETED' AND NOT coalesce(
                undelete_requested_at > coalesce(undelete_handled_at, '-infinity'), false)
            ELSE (phase = desired_state OR (phase = 'ERROR' AND desired_state <> 'DELETED')) AND NOT (
                coalesce(recover_requested_at > coalesce(recover_handled_at, '-infinity'), false)
                OR coalesce(restore_requested_at > coalesce(restore_handled_at, '-infinity'), false)
                OR coalesce(undelete_requested_at > coalesce(undelete_handled_at, '-infinity'), false))
        END
    ) STORED,
    slot text NOT NULL GENERATED ALWAYS AS (
        CASE
            WHEN deleted_at IS NOT NULL THEN 'free'
            WHEN coalesce(conditions -> 'infra.container_ready' ->> 'reason', 'NoContainer') <> 'NoContainer'
                THEN 'held'
            WHEN desired_state <> 'RUNNING' THEN 'free'
            WHEN phase = 'ERROR' THEN 'perhaps'
            ELSE 'held'
        END
    ) STORED,

    CONSTRAINT owner_id_fits_a_notice CHECK (length(owner_id) BETWEEN 1 AND 255),
    CONSTRAINT slug_is_a_label CHECK (slug ~ '^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$' AND slug NOT LIKE '%--%'),
    CONSTRAINT desired_state_known CHECK (
        desired_state IN ('DELETED', 'PENDING', 'ARCHIVED', 'STANDBY', 'RUNNING')),
    CONSTRAINT phase_known CHECK (
        phase IN ('DELETED', 'ERROR', 'PENDING', 'ARCHIVED', 'STANDBY', 'RUNNING')),
    CONSTRAINT operation_known CHECK (
        operation IN ('NONE', 'PROVISIONING', 'CREATE_EMPTY_ARCHIVE', 'RESTORING', 'STARTING', 'STOPPING',
                      'ARCHIVING', 'DISCARDING', 'DELETING')),
    CONSTRAINT recover_action_known CHECK (
        recover_action IN ('retry', 'use_archive', 'forget_archive', 'remove_container', 'empty_home')),
    CONSTRAINT error_reason_known CHECK (
        error_reason IN ('Mismatch', 'Unreachable', 'ActionFailed', 'Timeout', 'RetryExceeded', 'DataLost',
                         'ImagePullFailed', 'ContainerWithoutVolume', 'ArchiveCorrupted', 'ArchiveAccessError')),
    CONSTRAINT operation_in_error CHECK (phase <> 'ERROR' OR operation IN ('NONE', 'DELETING')),
    CONSTRAINT operation_has_id CHECK (
        operation = 'NONE' OR (op_id IS NOT NULL AND op_started_at IS NOT NULL)),
    CONSTRAINT error_info_names_reason CHECK (error_reason IS NOT DISTINCT FROM error_info ->> 'reason'),
    CONSTRAINT recover_names_action CHECK (recover_requested_at IS NULL OR recover_action IS NOT NULL),
    CONSTRAINT purged_only_deleted CHECK (purged_at IS NULL OR deleted_at IS NOT NULL),
    CONSTRAINT counts_not_negative CHECK (
        error_count >= 0 AND op_excused_seconds >= 0
        AND coalesce(standby_ttl_seconds, 0) >= 0 AND coalesce(archive_ttl_seconds, 0) >= 0)
) WITH (fillfactor = 80);

-- The name's index comes before the slug's: PostgreSQL reports the first that is violated.
CREATE UNIQUE INDEX workspaces_name ON workspaces (owner_id, lower(name)) WHERE deleted_at IS NULL;
CREATE UNIQUE INDEX workspaces_slug ON workspaces (slug);
CREATE INDEX workspaces_active ON workspaces (id) WHERE NOT at_rest;
CREATE INDEX workspaces_slots ON workspaces (slot, owner_id) WHERE slot <> 'free';
CREATE INDEX workspaces_idle ON workspaces (id) WHERE at_rest AND phase IN ('RUNNING', 'STANDBY');
CREATE INDEX workspaces_errors ON workspaces (error_reason) WHERE error_reason IS NOT NULL;

CREATE TABLE archives (
    key text PRIMARY KEY,
    workspace_id uuid NOT NULL REFERENCES workspaces (id),
    op_id uuid NOT NULL,
    bytes bigint NOT NULL CHECK (bytes >= 0),
    files bigint NOT NULL CHECK (files >= 0),
    sha256 text NOT NULL,
    created_at timestamptz NOT NULL,
    verified_at timestamptz NOT NULL,
    released_at timestamptz
);

CREATE INDEX archives_of_workspace ON archives (workspace_id, created_at DESC);

CREATE TABLE workspace_events (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL,
    workspace_id uuid NOT NULL REFERENCES workspaces (id),
    actor text NOT NULL,
    kind text NOT NULL,
    before text,
    after text,
    reason text NOT NULL,
    op_id uuid,
    message text NOT NULL
);

CREATE INDEX workspace_events_of_workspace ON workspace_events (workspace_id, id DESC);

CREATE TABLE leases (
    workspace_id uuid NOT NULL REFERENCES workspaces (id),
    holder text NOT NULL,
    until timestamptz NOT NULL,
    PRIMARY KEY (workspace_id, holder)
);

CREATE TABLE gc_marks (
    kind text NOT NULL CHECK (kind IN ('object', 'volume', 'container')),
    name text NOT NULL,
    workspace_id uuid,
    reason text NOT NULL,
    marked_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (kind, name)
);

CREATE TABLE installation (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    id uuid NOT NULL DEFAULT gen_random_uuid(),
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

INSERT INTO installation DEFAULT VALUES;

-- The epoch is the key on purpose: changing it conflicts with the key-share lock of every fenced write, while the
-- renewal each second, which changes no key, waits for nobody.
CREATE TABLE leadership (
    epoch bigint PRIMARY KEY,
    holder text NOT NULL,
    backend_pid integer,
    acquired_at timestamptz NOT NULL,
    renewed_at timestamptz NOT NULL
) WITH (fillfactor = 50);

CREATE UNIQUE INDEX leadership_is_one_row ON leadership ((true));
INSERT INTO leadership VALUES (0, '', NULL, to_timestamp(0), to_timestamp(0));

CREATE FUNCTION stamp_workspace() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.version := OLD.version + 1;
    NEW.updated_at := clock_timestamp();
    RETURN NEW;
END $$;

CREATE TRIGGER stamp BEFORE UPDATE ON workspaces FOR EACH ROW EXECUTE FUNCTION stamp_workspace();

CREATE FUNCTION tell_workspace() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    payload text := json_build_object('id', NEW.id, 'owner_id', NEW.owner_id)::text;
BEGIN
    IF TG_OP = 'INSERT' THEN
        PERFORM pg_notify('ws_sse', payload), pg_notify('ws_wake', payload);
        RETURN NULL;
    END IF;
    IF (NEW.name, NEW.slug, NEW.description, NEW.memo, NEW.template, NEW.image_ref, NEW.desired_state,
        NEW.standby_ttl_seconds, NEW.archive_ttl_seconds, NEW.last_access_at, NEW.phase, NEW.operation,
        NEW.op_progress, NEW.conditions, NEW.archive_key, NEW.error_reason, NEW.error_info, NEW.retry_at)
       IS DISTINCT FROM
       (OLD.name, OLD.slug, OLD.description, OLD.memo, OLD.template, OLD.image_ref, OLD.desired_state,
        OLD.standby_ttl_seconds, OLD.archive_ttl_seconds, OLD.last_access_at, OLD.phase, OLD.operation,
        OLD.op_progress, OLD.conditions, OLD.archive_key, OLD.error_reason, OLD.error_info, OLD.retry_at) THEN
        PERFORM pg_notify('ws_sse', payload);
    END IF;
    IF (NEW.desired_state, NEW.recover_requested_at, NEW.restore_requested_at, NEW.undelete_requested_at)
       IS DISTINCT FROM
       (OLD.desired_state, OLD.recover_requested_at, OLD.restore_requested_at, OLD.undelete_requested_at) THEN
        PERFORM pg_notify('ws_wake', payload);
    END IF;
    IF NEW.deleted_at IS DISTINCT FROM OLD.deleted_at THEN
        PERFORM pg_notify('ws_deleted', payload);
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER tell AFTER INSERT OR UPDATE ON workspaces FOR EACH ROW EXECUTE FUNCTION tell_workspace();

CREATE FUNCTION refuse_rewriting() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the ledger is append-only';
END $$;

CREATE TRIGGER append_only BEFORE UPDATE ON workspace_events FOR EACH ROW EXECUTE FUNCTION refuse_rewriting();
