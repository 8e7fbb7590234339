"""A machine and the log that it applies, for tests that say what they mean in ops."""

from typing import Any

from pavane.raft.errors import Code
from pavane.raft.machines.commands import Command, Compare, Failed, LeaseGrant, Op, Txn, encode_command, op_fields
from pavane.raft.machines.history import Cursor, Scope, Watch
from pavane.raft.machines.keyvalue import KeyValue, Tree
from pavane.raft.machines.state import decode_result


class Driver:
    """Applies commands one after the other from index 1 on."""

    def __init__(self, machine: KeyValue | None = None) -> None:
        self.machine = machine if machine is not None else Tree()
        self.index = self.machine.state.revision

    def apply(self, command: Command | bytes, reqid: bytes | None = None) -> tuple[Code, Any]:
        """Return code and payload or argument."""
        self.index += 1
        data = command if isinstance(command, bytes) else encode_command(command)
        result = self.machine.apply(self.index, reqid or self.index.to_bytes(12, "big"), memoryview(data))
        code, revision, value = decode_result(result.data)
        assert (code, revision) == (result.code, self.index)
        return code, value

    def do(self, *ops: Op) -> list[Any]:
        """Return the results of a transaction that must succeed, without the numbers of the ops."""
        code, value = self.apply(Txn(then=ops))
        assert code == Code.OK, (code, value)
        succeeded, results = value
        assert succeeded
        assert [result[0] for result in results] == [op.NUMBER for op in ops]
        return [result[1] if len(result) == 2 else result[1:] for result in results]

    def fails(self, *ops: Op) -> tuple[Code, Any]:
        """Return how a transaction fails, which must change nothing."""
        before = [*self.rows(), self.machine.state.bytes, len(self.machine.state.history)]
        code, value = self.apply(Txn(then=ops))
        assert code != Code.OK
        assert before == [*self.rows(), self.machine.state.bytes, len(self.machine.state.history)]
        return code, value

    def holds(self, *compares: Compare) -> bool:
        code, value = self.apply(Txn(compares))
        assert code == Code.OK, (code, value)
        assert value[1] == []
        return bool(value[0])

    def grant(self, ttl_ms: int = 10_000, holder: bytes = b"") -> int:
        code, value = self.apply(LeaseGrant(ttl_ms, holder))
        assert (code, value[0]) == (Code.OK, self.index)
        return self.index

    def rows(self) -> list[tuple[bytes, Any]]:
        """Return every key and node."""
        state = self.machine.state
        return [*state.keys.between(b"", None), *state.nodes.between(b"", None)]

    def keys(self) -> list[bytes]:
        return [key for key, _ in self.machine.state.keys.between(b"", None)]

    def read(self, *ops: Op) -> list[Any]:
        return list(self.machine.read([op_fields(op) for op in ops]))

    def cursor(self, start: bytes, end: bytes = b"", scope: Scope = Scope.KEYS, first: int = 1) -> Cursor:
        return self.machine.watch(Watch(scope, start, end, first).encode(), self.index)

    def take_all(self, cursor: Cursor) -> list[tuple[int, list[tuple[Any, ...]]]]:
        """Return everything that a watcher has not seen yet."""
        seen = []
        while (found := cursor.take(self.machine.state.history, self.index)) is not None:
            seen.append((found[0], [tuple(event) for event in found[1]]))
        return seen


def refused(call: Any, *arguments: Any) -> tuple[Code, Any]:
    """Return the code and argument with which ``call`` ends."""
    try:
        call(*arguments)
    except Failed as failed:
        return failed.code, failed.argument
    raise AssertionError("it was not refused")
