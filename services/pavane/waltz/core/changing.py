"""What clients have changed in a partition's metadata: trims by hand and consumers (docs/specs/waltz.md 13.5, 13.7)."""

from collections.abc import Callable
from typing import Any

from pavane.waltz.core.connection import Connection, kind_of
from pavane.waltz.core.feed import ENDS
from pavane.waltz.core.outputs import Reply
from pavane.waltz.core.retention import CONSUMER_NAME, Change, Fault
from pavane.waltz.core.storing import Storing
from pavane.waltz.errors import RejectCode
from pavane.waltz.wire import messages as m
from pavane.waltz.wire.fields import ReqId


class Changing(Storing):
    """Answers when what was asked for is durable."""

    def consumers(self) -> tuple[m.ConsumerState, ...]:
        """Return all consumers, for people."""
        return self.keeping.states(self.now, -1 if self.hwm is None else self.hwm)

    def reject(
        self, connection: Connection, reqid: ReqId, number: int, code: RejectCode, text: str, detail: int = -1
    ) -> None:
        """Refuse a request of a client that understands refusals."""
        self._reply(connection, m.Reject(reqid, number, code, detail, self.generation, text[:1000]))

    def _reply(self, connection: Connection, message: Any) -> None:
        self._out.append(Reply(connection.id, message))

    def _trim(self, connection: Connection, request: m.TrimRequest, hwm: int) -> None:
        if request.flags & ~(m.FLAG_DRY_RUN | m.FLAG_FORCE) or request.before < 0:
            text = "an unknown flag, or a number that is too small"
            self.reject(connection, request.reqid, 47, RejectCode.BAD_REQUEST, text)
        elif request.before > hwm + 1:
            self.reject(connection, request.reqid, 47, RejectCode.CLIENT_AHEAD, ENDS.format(hwm), hwm)
        elif (before := self.keeping.reach(request, hwm)) <= self.first:
            self._reply(connection, m.TrimResponse(request.reqid, self.first, self.first, hwm))
        elif request.flags & m.FLAG_DRY_RUN:
            answer = m.TrimResponse(request.reqid, self.first, before, hwm)
            self._answer(connection, request, self.keeping.fault_of(request), lambda: answer)
        else:
            former = self.first
            self._change(connection, request, lambda: m.TrimResponse(request.reqid, former, self.keeping.first, hwm))

    def _consumer(self, connection: Connection, request: m.ConsumerRequest, hwm: int) -> None:
        def answer() -> m.ConsumerResponse:
            found = self.keeping.states(self.now, hwm, request.name)
            return m.ConsumerResponse(request.reqid, self.first, hwm, found)

        listing = request.action is m.ConsumerAction.LIST
        if not (CONSUMER_NAME.fullmatch(request.name) or (listing and not request.name)) or request.position < 0:
            text = "a position is not below 0, and a name has at most 127 letters, digits, dots, hyphens and underlines"
            self.reject(connection, request.reqid, 49, RejectCode.BAD_REQUEST, text)
        elif listing and self.healthy:
            self._reply(connection, answer())
        else:
            self._change(connection, request, answer)

    def _change(
        self, connection: Connection, request: m.TrimRequest | m.ConsumerRequest, answer: Callable[[], Any]
    ) -> None:
        """Have the metadata changed, and ``answer`` when they are."""
        if self.session is None or not self.healthy:
            self.reject(connection, request.reqid, kind_of(request), RejectCode.UNAVAILABLE, self.blocker)
            return

        def judged(fault: Fault | None) -> None:
            self._answer(connection, request, fault, answer)

        self._take(self.session.change(self.now, Change(request, judged, self.keeping.ms(self.now))))

    def _answer(self, connection: Connection, request: Any, fault: Fault | None, answer: Callable[[], Any]) -> None:
        self._look_again()
        if fault is None:
            self._reply(connection, answer())
        else:
            self.reject(connection, request.reqid, kind_of(request), *fault)
