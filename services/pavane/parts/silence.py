"""When a connection that brings nothing any more counts as dead: one set of numbers for all that the platform dials.

A firewall that restarts, a connection table that is flushed and a NAT that forgets tell neither end. Whoever dialled
finds out by these, and dials anew, which works (docs/specs/operator.md 5.14).
"""

PROBE_AFTER_S = 2
"""Idle so long, a peer is asked by its kernel. It also keeps the entry of a NAT on the way alive."""
PROBE_EVERY_S = 1
"""Between two such questions."""
SILENT_S = 4
"""What a peer has not acknowledged for so long, bytes or a question, ends the connection: longer than a lost packet and
its repetitions take. Bytes that go onto an idle connection just before its end begin a time of their own, so it may
stand twice as long, which is still less than a user waits for."""
BEAT_S = 2.0
"""Longest silence of a server's event stream: a comment comes in between, through proxies too."""
STREAM_SILENT_S = 5.0
"""A reader of an event stream that heard nothing for so long dials anew: two beats, and time for a busy server."""
REUSE_S = 2.0
"""An HTTP connection that was idle for longer carries no further request: nobody knows whether it is still there."""
