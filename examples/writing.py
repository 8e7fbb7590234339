"""Write to a RaftCluster again and again, and print the longest pause: `python examples/writing.py quickstart`."""

import signal
import sys
import time

import pavane

signal.signal(signal.SIGTERM, lambda *_: sys.exit())

longest = 0.0
with pavane.connect_sync(sys.argv[1], timeout_s=30) as raft:
    written = 0
    try:
        while True:
            began = time.monotonic()
            raft.put("writing", str(written))
            written += 1
            longest = max(longest, time.monotonic() - began)
            time.sleep(0.01)
    finally:
        print(f"{written} writes acknowledged, the longest took {longest * 1000:.0f} ms")
