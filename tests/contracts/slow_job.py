"""Stands for a storage job of a large home: reports progress and never ends by itself."""

import json
import time

for done in range(100_000):
    print(json.dumps({"event": "progress", "step": "pack", "bytes": done, "files": 1, "total_bytes": 0}), flush=True)
    time.sleep(0.05)
