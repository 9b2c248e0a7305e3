"""The workspace agent: a small program beside the IDE inside each container, and how CodeHub talks to it.

An address says where a container is, not whose it is: it passes to another person's container as soon as this one ends.
Every connection to a workspace therefore begins with a proof in both directions, made with a key of that very start.
What listens on loopback inside is reached by the agent, which is inside. It imports the standard library alone.
"""
