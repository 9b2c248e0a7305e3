"""Whether a person is at work in a workspace, told from what passes through the proxy."""
