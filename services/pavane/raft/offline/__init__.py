"""What is done with a peer's data folder while the peer is down, and the folder of the original program.

``store`` reads our folder and changes nothing; ``mend`` and ``compacting`` change it. ``js_folder`` is the folder of
the original program; ``moving`` goes from one program's folder to the other's. ``manifest`` says whether a backup is
whole, and ``restoring`` makes a new cluster of it (docs/specs/raft.md 13.5, 13.6, 17).
"""
