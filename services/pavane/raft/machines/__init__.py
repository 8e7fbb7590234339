"""The replicated state machines ``KeyValue`` and ``Tree`` (docs/specs/raft.md 12), pure.

``KeyValue`` and ``Tree`` apply commands (``commands``) and are snapshotted; ``Cursor`` follows their history;
``LeaseKeeper`` is the leader's knowledge of time, which is no part of the state.
"""
