"""A workspace agent for the proxy's benchmark, in a process of its own. Its first line of output is its port and its
key.
"""

import os

from codehub.agent.handshake import KEY_BYTES
from codehub.agent.relay import Relay, listen

if __name__ == "__main__":
    listener, key = listen("127.0.0.1", 0), os.urandom(KEY_BYTES)
    print(listener.getsockname()[1], key.hex(), flush=True)
    Relay(listener, key).serve()
