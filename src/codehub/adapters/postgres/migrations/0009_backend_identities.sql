-- Which runtime holds the homes and which store the archives, so that another one's answers are not believed.

CREATE TABLE worlds (
    backend text PRIMARY KEY CHECK (backend IN ('runtime', 'archives')),
    identity text NOT NULL,
    since timestamptz NOT NULL
);
