"""The storage job: turns a home volume into a proven archive and an archive back into a home.

One stateless, crash-only program. It knows a directory, an object store and a key, and nothing of workspaces,
databases or the control plane; no module here imports codehub outside this package. Killed at any point and run
again with the same arguments it ends in the same result.
"""
