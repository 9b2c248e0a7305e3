"""The SSH gateway: shells, commands, files and ports of workspaces, for the SSH clients that people already have.

It is a process of its own and keeps nothing. Who connects is known by a registered key; what they may enter, the same
rule as the front door's says; and whatever they start runs inside the workspace, never here.
"""
