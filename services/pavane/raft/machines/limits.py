"""Limits that decide what a command does (docs/specs/raft.md 12.3, 14.4).

They are part of the replicated machine's level, not configuration: two replicas with different values would answer the
same command differently. A change of one is a new level.
"""

LEVEL_FIRST = 1  # the command set that every program has (12.2)

KEY_BYTES_MAX = 1024  # keys and paths: names, not documents
VALUE_BYTES_MAX = 1 << 20  # values and data: one of them fits any reply
TXN_BYTES_MAX = 2 << 20  # a whole command; applying one must not hold up the loop
TXN_ITEMS_MAX = 128  # compares, and ops per branch
HOLDER_BYTES_MAX = 256  # who holds a lease, for people who read it

STORE_KEYS_MAX = 1_000_000  # keys and nodes together: about 400 MB of Python objects
STORE_BYTES_MAX = 256 << 20  # keys, values, paths and data: what a snapshot must carry to a new replica
LEASES_MAX = 100_000  # each is a timer at the leader
LEASE_BATCH_MAX = 1000  # leases that one entry ends or one keep-alive names
LEASE_TTL_MIN_MS = 200  # below, a heartbeat round decides who loses its lease
LEASE_TTL_MAX_MS = 3_600_000  # longer than anybody waits for a dead holder

RESULTS_KEPT_MAX = 10_000  # results told again to a client that repeats (12.4)
RESULTS_BYTES_MAX = 8 << 20
HISTORY_EVENTS_MAX = 50_000  # what a watcher may be behind (12.6)
HISTORY_BYTES_MAX = 32 << 20
EVENT_BYTES = 32  # of an event beside key and data, for HISTORY_BYTES_MAX

RANGE_ITEMS_MAX = 1000  # keys of one RANGE
REPLY_BYTES_MAX = 1 << 20  # what reads of one command put into its reply, unless one value alone is larger
REPLY_ELEMENTS_MAX = 60_000  # and how many values and arrays: a frame of 65 536 has room for those around them (2.2)
MESSAGE_EVENTS_MAX = 10_000  # events in one message to a watcher, each an array of five, for the same reason
ITEM_BYTES = 64  # greatest size of the numbers and headers around one key or node in a reply
NAME_BYTES = 5  # greatest size of the header of one name in CHILDREN

SNAPSHOT_SLICE = 500  # records serialised in one turn of the loop
SNAPSHOT_SLICE_BYTES = 1 << 20  # and about so many bytes, for large values
