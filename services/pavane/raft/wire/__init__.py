"""Codec of ØMQ Raft: every message of docs/specs/raft.md 2-4, pure and total.

``decode_request(frames, ident)`` and ``decode_reply(ReplyClass, frames)`` give a message or a ``Drop``; every message
has ``encode``. The id frame belongs to the caller: a request decodes from frames with the id first, everything else is
without it.
"""
