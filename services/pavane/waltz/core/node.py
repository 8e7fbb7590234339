"""A storage node: obeys the newest session of each partition, and answers when what it says is durable (10, 10.1).

``arrive`` is called as messages come in, ``execute`` with any number of them that have queued up: they share their
syncs. Answers are handed over only when everything that they say is on disk.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, assert_never
from zlib import crc32

from pavane.waltz.state.store import Damaged, Refused, SessionInfo
from pavane.waltz.wire import storage as s
from pavane.waltz.wire.storage import CopyState, RepairStep

if TYPE_CHECKING:  # it is given them, and makes none: what it does is the same on any disk
    from pavane.waltz.storage.directory import Directory, PartitionFiles

DISK_RESERVE_BYTES = 256 * 1024 * 1024  # below it appends are refused while there is still room to write marks

Request = (
    s.LastSessionInfoRequest
    | s.SetLowWaterMark
    | s.Truncate
    | s.Append
    | s.RecordHeaderRequest
    | s.RecordRequest
    | s.MaxTransactionIdRequest
    | s.RecordHeaderListRequest
    | s.RecordListRequest
    | s.Retain
    | s.Repair
)


class Node:
    """Storage of one cluster."""

    def __init__(self, store: "Directory", *, disk_reserve_bytes: int = DISK_RESERVE_BYTES) -> None:
        self._store = store
        self._reserve = disk_reserve_bytes
        self._newest: dict[int, int] = {}
        self._rebuilt_by: dict[int, int] = {}
        """Sessions that may use a copy of a partition that is being rebuilt."""
        self.lacking_bytes = 0
        """Size of the last append if there was no room for it."""

    def arrive(self, head: s.Head) -> None:
        """From now on nothing of an older session is obeyed. May be called while ``execute`` runs elsewhere."""
        if head.session > self._newest.get(head.partition, -1):
            self._newest[head.partition] = head.session

    def execute(self, messages: Sequence[Request]) -> list[Any]:
        """Carry out messages in order and return their answers, which are durable."""
        touched: dict[int, PartitionFiles] = {}
        self._keep_fences(messages)
        answers = []
        for message in messages:
            try:
                answers.append(self._carry_out(message, touched))
            except (Refused, Damaged, OSError) as error:
                answers.append(s.Failure(message.head, _text(error)))
        if len(touched) > 1:
            for files in touched.values():
                files.begin_sync()
        for number, files in touched.items():
            try:
                files.sync()
            except OSError as error:
                failed = f"partition {number}: {_text(error)}"
                answers = [
                    s.Failure(answer.head, failed) if answer.head.partition == number else answer for answer in answers
                ]
        return answers

    def _keep_fences(self, messages: Sequence[Request]) -> None:
        """A promise is durable before it is acted on: a restart must not let an older session in again."""
        raised = False
        for number in {message.head.partition for message in messages}:
            files = self._store.partition(number)
            newest = self._newest.get(number, -1)
            if files is not None and newest > files.fence:
                files.raise_fence(newest)
                raised = True
        if raised:
            self._store.sync_marks()

    def _carry_out(self, message: Request, touched: dict[int, "PartitionFiles"]) -> Any:
        head = message.head
        offline = getattr(message, "offline", False)
        files = self._store.files(head.partition)
        if isinstance(message, s.Repair):
            return self._repair(head, files, message.step)
        if isinstance(message, s.RecordListRequest) and files.state is CopyState.DAMAGED:
            self._check_session(head, files)  # what can be read of it may be all that there is
        else:
            self._check(head, files, offline=offline)
        if isinstance(message, s.LastSessionInfoRequest) and not (files.available or offline):
            raise Refused(files.fault)  # with it a recovery begins, which has to know that nobody has verified the copy
        match message:
            case s.LastSessionInfoRequest():
                return s.LastSessionInfoResponse(head, *files.info)
            case s.SetLowWaterMark():
                self._set_info(files, head.session, message.lwm)
                return s.Success(head)
            case s.Truncate():
                files.truncate(max(-1, message.txid))
                return s.MaxTransactionIdResponse(head, files.max_txid)
            case s.Retain():
                return s.Retained(head, *files.retain(message.start, message.bytes_max, message.age_ms_max))
            case s.Append():
                touched[head.partition] = files
                self._append(files, message.records)
                return s.Success(head)
            case s.MaxTransactionIdRequest():
                return s.MaxTransactionIdResponse(head, files.max_txid)
            case s.RecordHeaderRequest():
                return s.RecordHeaderResponse(head, next(iter(_headers(files, message.txid, 1)), None))
            case s.RecordRequest():
                return s.RecordResponse(head, next(iter(files.read(message.txid, 1)), None))
            case s.RecordHeaderListRequest():
                return s.RecordHeaderListResponse(head, tuple(_headers(files, message.txid, message.count)))
            case s.RecordListRequest():
                count = min(message.count, s.RECORDS_MAX)
                return s.RecordListResponse(head, tuple(files.read(message.txid, count)))
            case _:
                assert_never(message)

    def _repair(self, head: s.Head, files: "PartitionFiles", step: int) -> s.Repaired:
        """Carry out what only the newest session may ask for: it saw that a majority is whole without this copy."""
        self._check_session(head, files)
        state = files.state
        if (state is CopyState.DAMAGED and step in (RepairStep.BEGIN, RepairStep.ANEW)) or (
            state is CopyState.REBUILDING and step == RepairStep.ANEW
        ):
            files.rebuild()
        elif state is CopyState.REBUILDING and step == RepairStep.DONE:
            files.rebuilt()
        if step in (RepairStep.BEGIN, RepairStep.ANEW):
            self._rebuilt_by[head.partition] = head.session
        return s.Repaired(head, files.state, *files.info, files.fault)

    def _check_session(self, head: s.Head, files: "PartitionFiles") -> None:
        newest = max(self._newest.get(head.partition, -1), files.fence)
        if head.session != newest:
            raise Refused(f"session id has changed: {head.session} was sent, {newest} is the newest")

    def _check(self, head: s.Head, files: "PartitionFiles", *, offline: bool) -> None:
        if offline:
            if files.available:
                raise Refused(f"partition {head.partition} is in use: make it unavailable first")
            if head.session != files.info.session:
                raise Refused(f"session id has changed: {head.session} was sent, {files.info.session} is stored")
            return
        rebuilding = files.state is CopyState.REBUILDING and self._rebuilt_by.get(head.partition) == head.session
        if not files.available and not rebuilding:
            raise Refused(f"partition {head.partition} is unavailable: {files.fault or 'switched off'}")
        self._check_session(head, files)

    def _set_info(self, files: "PartitionFiles", session: int, lwm: int) -> None:
        info, last = files.info, files.max_txid
        if session < info.session:
            raise Refused(f"session {session} is older than the stored one, {info.session}")
        if last > lwm:
            raise Refused(f"low-water mark {lwm} is below the last transaction, {last}")
        if session == info.session and (lwm < info.lwm or last < info.local_lwm):
            raise Refused(f"low-water mark {lwm} is below that of this session, {info.lwm}")
        files.set_info(SessionInfo(session, lwm, last))

    def _append(self, files: "PartitionFiles", records: Sequence[s.Record]) -> None:
        size = sum(len(record.data) for record in records)
        lacks = self._store.free_bytes() - size < self._reserve
        self.lacking_bytes = size if lacks else 0
        if lacks:
            raise Refused(f"less than {self._reserve} bytes are free on the disk")
        for expected, (txid, _, _, data, crc) in enumerate(records, files.max_txid + 1):
            if txid != expected:
                raise Refused(f"transaction out of order: {txid} was sent, {expected} is next")
            if crc32(data) != crc:
                raise Refused(f"transaction {txid}: data does not match its CRC")
        if records:
            files.append(records)


def _headers(files: "PartitionFiles", txid: int, count: int) -> list[s.RecordHeader]:
    """Return the headers of as many records as fit one answer, for it reads and checks all of these."""
    records = files.read(txid, min(count, s.RECORDS_MAX))
    return [s.RecordHeader(record.txid, record.reqid, record.header) for record in records]


def _text(error: Exception) -> str:
    return str(error)[:1000]
