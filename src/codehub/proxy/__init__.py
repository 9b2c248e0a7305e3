"""The reverse proxy between browsers and workspaces, which the documentation calls the front door.

Hot path: one strict parse, one call of the authorizer, one write to the workspace, one write back. Nothing on it
awaits.
"""
