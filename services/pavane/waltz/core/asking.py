"""Questions of a store session to storage nodes, and who waits for the answers."""

from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

from pavane.waltz.core.outputs import Output, Send
from pavane.waltz.core.replica import Asked
from pavane.waltz.wire import storage as s

REQUEST_TIMEOUT_S = 5.0

Taken = Callable[[tuple[s.Record, ...] | None], None]


class Asking:
    """Questions about ``partition`` to nodes, of which those in ``up`` can be reached."""

    def __init__(self, partition: int, up: Iterable[str]) -> None:
        self.partition = partition
        self.id = -1
        self.ended = False
        self._up = set(up)
        self._seq = count()
        self._asked: dict[int, Asked] = {}
        self._outputs: list[Output] = []
        self._now = 0.0

    def _ask(self, node: str, answer: Callable[[Any], None], kind: Callable[..., Any], *arguments: Any) -> None:
        if node not in self._up:
            answer(None)
            return
        head = s.Head(self.id, next(self._seq), self.partition)
        self._asked[head.seq] = Asked(node, self._now + REQUEST_TIMEOUT_S, answer)
        self._outputs.append(Send(node, kind(head, *arguments)))

    def _read_from(self, sources: list[str], txid: int, limit: int, answer: Taken) -> None:
        """Read from the first of ``sources`` that has ``txid``; ``None`` if none gives it."""
        if not sources or limit <= 0 or self.ended:
            answer(None)
            return

        def take(response: Any) -> None:
            if isinstance(response, s.RecordListResponse) and response.records:
                answer(response.records[:limit])
            else:
                self._read_from(sources[1:], txid, limit, answer)

        self._ask(sources[0], take, s.RecordListRequest, txid, min(limit, s.RECORDS_MAX))

    def _flush(self) -> list[Output]:
        outputs, self._outputs = self._outputs, []
        return outputs
