"""The HTTP API under /api/v1: a thin room between HTTP and the use cases, which decide."""
