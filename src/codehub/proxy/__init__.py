"""The front door: the relay between browsers and workspaces, on asyncio protocols.

Hot path: one strict parse, one call of the gate, one write to the workspace, one write back. Nothing on it awaits.
"""
