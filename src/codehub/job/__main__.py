"""`python -m codehub.job archive|restore …`, the program that runs in containers, Jobs and subprocesses."""

import os
import sys

from codehub.job.command import main

if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    # No interpreter shutdown: a look-ahead thread stuck in a dead network call must not keep the job alive.
    os._exit(code)
