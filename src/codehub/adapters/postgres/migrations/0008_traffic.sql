-- What passed the front doors, minute by minute, for a day.

CREATE TABLE traffic (
    minute timestamptz PRIMARY KEY,
    requests bigint NOT NULL CHECK (requests >= 0),
    socket_seconds double precision NOT NULL CHECK (socket_seconds >= 0)
);
