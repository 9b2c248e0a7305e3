-- What admins ask of the collector: the leader alone sweeps, so a run by hand is a request that it takes.
--
-- A mark belongs to a workspace's id, known or not: it is what the sweep judges again by.

CREATE TABLE gc_requests (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    asked_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    asked_by text NOT NULL,
    waived text[] NOT NULL,
    finished_at timestamptz,
    report jsonb,
    CONSTRAINT finished_with_a_report CHECK ((finished_at IS NULL) = (report IS NULL))
);

CREATE INDEX gc_requests_pending ON gc_requests (id) WHERE finished_at IS NULL;

-- Nothing has written marks before this revision.
DELETE FROM gc_marks;
ALTER TABLE gc_marks ALTER COLUMN workspace_id SET NOT NULL;
