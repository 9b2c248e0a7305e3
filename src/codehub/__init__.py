"""CodeHub: a self-hosted cloud development environment whose homes survive anything."""
