-- The branch or tag of the repository that a workspace is made with; shown to people, so the trigger compares it too
-- (PUBLISHED_FIELDS in domain/workspace.py).

ALTER TABLE workspaces ADD COLUMN git_ref text CONSTRAINT git_ref_is_short CHECK (length(git_ref) <= 255);

CREATE OR REPLACE FUNCTION tell_workspace() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    payload text := json_build_object('id', NEW.id, 'owner_id', NEW.owner_id)::text;
BEGIN
    IF TG_OP = 'INSERT' THEN
        PERFORM pg_notify('ws_sse', payload), pg_notify('ws_wake', payload);
        RETURN NULL;
    END IF;
    IF (NEW.name, NEW.slug, NEW.description, NEW.memo, NEW.template, NEW.git_url, NEW.git_ref, NEW.image_ref,
        NEW.desired_state, NEW.standby_ttl_seconds, NEW.archive_ttl_seconds, NEW.last_access_at, NEW.phase, NEW.operation,
        NEW.op_progress, NEW.conditions, NEW.archive_key, NEW.error_reason, NEW.error_info, NEW.retry_at,
        NEW.at_rest)
       IS DISTINCT FROM
       (OLD.name, OLD.slug, OLD.description, OLD.memo, OLD.template, OLD.git_url, OLD.git_ref, OLD.image_ref,
        OLD.desired_state, OLD.standby_ttl_seconds, OLD.archive_ttl_seconds, OLD.last_access_at, OLD.phase, OLD.operation,
        OLD.op_progress, OLD.conditions, OLD.archive_key, OLD.error_reason, OLD.error_info, OLD.retry_at,
        OLD.at_rest) THEN
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
