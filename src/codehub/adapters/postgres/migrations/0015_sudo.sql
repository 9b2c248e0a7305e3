-- Whether people may become root inside their own container.
ALTER TABLE templates ADD COLUMN sudo boolean NOT NULL DEFAULT false;
