"""Responses that wait for the controller to read them, in order, up to a limit (docs/specs/compute.md 2.1)."""

from collections import deque
from collections.abc import Sequence

from pavane.compute.wire.common import Failure, Rows
from pavane.compute.wire.responses import Batch, PeekResponse, Response, RowsPart, SubscribeResponse
from pavane.wire import LocalProtocolError

UNSENT_BYTES_MAX = 256 << 20  # of one stream
PART_BYTES_MAX = 16 << 20  # of the rows in one message, far below what gRPC takes
RESPONSE_BYTES = 256  # what a response without rows takes at most in memory, on average


class Outbox:
    """An ordered queue of responses. The parts of a large answer follow one by one and count when their turn comes."""

    def __init__(self) -> None:
        self.bytes = 0
        self._waiting: deque[Response | tuple[bytes, Sequence[Rows]]] = deque()
        self._number = 0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def full(self) -> bool:
        """Whether the limit is exceeded."""
        return self.bytes > UNSENT_BYTES_MAX

    def put(self, response: Response) -> None:
        """Append one response."""
        self._waiting.append(response)
        self.bytes += _size(response)

    def put_answer(self, uuid: bytes, parts: Sequence[Rows]) -> None:
        """Append the answer to a peek, cut into parts of at most ``PART_BYTES_MAX`` by whoever read it."""
        if any(len(part.arrow_ipc) > PART_BYTES_MAX for part in parts):
            raise LocalProtocolError(f"an answer in parts of more than {PART_BYTES_MAX} bytes")
        if len(parts) == 1:
            self.put(PeekResponse(uuid, parts[0]))
        elif parts:
            self._waiting.append((uuid, parts))
        else:
            self.put(PeekResponse(uuid, Rows()))

    def take(self) -> Response | None:
        """Remove and return the next response, ``None`` when none waits."""
        if not self._waiting:
            return None
        first = self._waiting[0]
        if not isinstance(first, tuple):
            self._waiting.popleft()
            self.bytes -= _size(first)
            return first
        uuid, parts = first
        number, last = self._number, self._number + 1 == len(parts)
        self._number = 0 if last else number + 1
        if last:
            self._waiting.popleft()
        return PeekResponse(uuid, RowsPart(number, last, parts[number]))


def _size(response: Response) -> int:
    content: object = response
    if isinstance(response, PeekResponse):
        content = response.result
    elif isinstance(response, SubscribeResponse) and isinstance(response.kind, Batch):
        content = response.kind.content
    if isinstance(content, Rows):
        return RESPONSE_BYTES + len(content.arrow_ipc)
    return RESPONSE_BYTES + (len(content.text) if isinstance(content, Failure) else 0)
