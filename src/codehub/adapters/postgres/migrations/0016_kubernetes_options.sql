-- What a template says to a Kubernetes cluster alone: node selector, tolerations, classes, pull secrets, command.
ALTER TABLE templates ADD COLUMN kubernetes jsonb NOT NULL DEFAULT '{}'::jsonb;
