"""What a real workbench tab says through the proxy, kept so that presence can be tested without one.

`python -m tests.proxy.recording` drives a tab and records it anew, which is what to do for a new code-server.
"""
