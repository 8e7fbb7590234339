"""What tools ask of a storage node and change there, beside its protocol with servers (docs/specs/waltz.md 11).

Nothing here looks at sessions, so nothing here fences an owner.
"""

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, assert_never

from pavane.waltz.state.store import Damaged, Refused
from pavane.waltz.wire import storage as s

if TYPE_CHECKING:
    from pavane.waltz.storage.directory import Directory

Request = (
    s.SetAvailable
    | s.SetAssigned
    | s.RecordListRequest
    | s.AdminSessionInfoRequest
    | s.MetricsRequest
    | s.PartitionStatusRequest
)


class Admin:
    """The admin side of the node that keeps its partitions in ``store``; ``counters`` are told with the metrics."""

    def __init__(self, store: "Directory", counters: Callable[[], dict[str, int]] = dict) -> None:
        self._store = store
        self._counters = counters

    def execute(self, request: Request) -> Any:
        """Carry out a request, durably, and return the answer. Either all partitions of a list are changed or none."""
        try:
            return self._carry_out(request)
        except (Refused, Damaged, OSError) as error:
            return s.Failure(request.head, str(error)[:1000])

    def _carry_out(self, request: Request) -> Any:
        match request:
            case s.SetAvailable():
                self._set_available(request)
                return s.Success(request.head)
            case s.SetAssigned():
                self._set_assigned(request)
                return s.Success(request.head)
            case s.RecordListRequest():
                count = max(0, min(request.count, s.RECORDS_MAX))
                records = self._store.files(request.head.partition).read(request.txid, count)
                return s.RecordListResponse(request.head, tuple(records))
            case s.AdminSessionInfoRequest():
                info = self._store.files(request.head.partition).info
                return s.LastSessionInfoResponse(request.head, *info)
            case s.MetricsRequest():
                return s.MetricsResponse(request.head, json.dumps(self._metrics()))
            case s.PartitionStatusRequest():
                found = tuple(s.PartitionStatus(files.number, files.available) for files in self._store.assigned())
                return s.PartitionStatusResponse(request.head, found)
            case _:
                assert_never(request)

    def _set_available(self, request: s.SetAvailable) -> None:
        changed = [self._store.files(number) for number in request.partitions]
        for files in changed:
            if request.available and files.fault:
                raise Refused(f"partition {files.number} cannot be used: {files.fault}")
        for files in changed:
            files.set_available(request.available)

    def _set_assigned(self, request: s.SetAssigned) -> None:
        for number in request.partitions:
            if not 0 <= number < self._store.partitions:
                raise Refused(f"there is no partition {number}")
        if request.assign:
            self._store.assign(request.partitions)
        else:
            for number in request.partitions:
                self._store.unassign(number, delete_files=request.delete_files)

    def _metrics(self) -> dict[str, Any]:
        partitions = {
            str(files.number): {
                "session-id": files.info.session,
                "low-water-mark": files.info.lwm,
                "local-low-water-mark": files.info.local_lwm,
                "max-transaction-id": files.max_txid,
                "available": files.available,
                "fault": files.fault,
            }
            for files in self._store.assigned()
        }
        return {**self._counters(), "partitions": partitions}
