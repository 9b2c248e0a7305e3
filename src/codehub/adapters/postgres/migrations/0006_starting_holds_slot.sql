-- A start that is under way holds its slot, whatever is wished meanwhile: its container may be there before it is seen.
-- An expression cannot be changed in place, so the column is made anew, and its index with it.

ALTER TABLE workspaces DROP COLUMN slot;

ALTER TABLE workspaces ADD COLUMN slot text NOT NULL GENERATED ALWAYS AS (
    CASE
        WHEN deleted_at IS NOT NULL THEN 'free'
        WHEN operation = 'STARTING' THEN 'held'
        WHEN coalesce(conditions -> 'infra.container_ready' ->> 'reason', 'NoContainer') <> 'NoContainer'
            THEN 'held'
        WHEN desired_state <> 'RUNNING' THEN 'free'
        WHEN phase = 'ERROR' THEN 'perhaps'
        ELSE 'held'
    END
) STORED;

CREATE INDEX workspaces_slots ON workspaces (slot, owner_id) WHERE slot <> 'free';
