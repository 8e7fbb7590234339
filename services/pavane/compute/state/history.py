"""The commands that still matter, kept reduced at all times (docs/specs/compute.md 7).

The controller replays its history to every new connection; a replica keeps one to judge commands by and to reconcile.
A command binds to the incarnation of the id that is alive when it is pushed.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from pavane.compute.wire.commands import (
    AllowCompaction,
    AllowWrites,
    CancelPeek,
    Command,
    CreateDataflow,
    CreateInstance,
    CreateTimely,
    DataflowDescription,
    InitializationComplete,
    Peek,
    Schedule,
    UpdateConfiguration,
)
from pavane.compute.wire.common import CLOSED, Token
from pavane.wire import ProtocolError


class HistoryError(ProtocolError):
    """The command may not follow those before it; the history is as it was."""


class Repeated(HistoryError):
    """A second CreateTimely, CreateInstance or InitializationComplete, or a peek with the uuid of an open one."""


class Regressed(HistoryError):
    """A frontier below an earlier one of a live id, or one that drops what cannot be dropped."""


class StillAlive(HistoryError):
    """A dataflow exports an id that is alive, or twice the same. An id is free when all of its dataflow is dropped."""


@dataclass(slots=True)
class Flow:
    """A live dataflow: its description at the effective as_of, and what was said about its exports.

    ``compaction`` holds frontiers that are greater than as_of; ``CLOSED`` marks a dropped export.
    """

    description: DataflowDescription
    compaction: dict[str, int] = field(default_factory=dict)
    scheduled: list[str] = field(default_factory=list)
    allowed: dict[str, Token] = field(default_factory=dict)

    def since(self, id_: str) -> int:
        """The tick below which nobody outside reads this export."""
        return self.compaction.get(id_, self.description.as_of)

    def settle(self) -> bool:
        """Raise as_of to what all exports have in common; returns whether any export is left."""
        as_of = min(self.since(id_) for id_ in self.description.exports)
        if as_of == CLOSED:
            return False
        if as_of > self.description.as_of:
            self.description = replace(self.description, as_of=as_of)
        self.compaction = {id_: since for id_, since in self.compaction.items() if since > as_of}
        return True


class History:
    """The reduced history of one replica set."""

    def __init__(self, commands: Iterable[Command] = ()) -> None:
        self.timely: CreateTimely | None = None
        self.instance: CreateInstance | None = None
        self.configuration: dict[str, str] = {}
        self.flows: dict[tuple[str, ...], Flow] = {}
        self.peeks: dict[bytes, Peek] = {}
        self.initialized = False
        self.allowed: Token | None = None
        self._exporters: dict[str, Flow] = {}
        self._introspection: dict[str, int] = {}
        for command in commands:
            self.push(command)

    def flow(self, id_: str) -> Flow | None:
        """The live dataflow that exports ``id_``, which itself may be dropped already."""
        return self._exporters.get(id_)

    def push(self, command: Command) -> bool:
        """Take one more command; returns whether it had any effect. Raises ``HistoryError``."""
        match command:
            case CreateTimely():
                _once(self.timely)
                self.timely = command
            case CreateInstance():
                _once(self.instance)
                self.instance = command
            case InitializationComplete():
                _once(self.initialized or None)
                self.initialized = True
            case UpdateConfiguration():
                self.configuration |= command.settings
            case CreateDataflow():
                self._create(command.dataflow)
            case Schedule():
                return self._schedule(command.id)
            case AllowCompaction():
                return self._compact(command)
            case AllowWrites():
                return self._allow(command)
            case Peek():
                if command.uuid in self.peeks:
                    raise Repeated(f"a peek with the uuid {command.uuid.hex()} is open")
                self.peeks[command.uuid] = command
            case CancelPeek():
                return self.peeks.pop(command.uuid, None) is not None
        return True

    def commands(self, uppers: Mapping[str, int] | None = None) -> tuple[Command, ...]:
        """The shortest history with the same effect; ``uppers`` refreshes the hints of its source imports."""
        flows = tuple(self.flows.values())
        head = (self.timely, self.instance, UpdateConfiguration(dict(self.configuration)))
        return (
            *(each for each in head[:2] if each is not None),
            *(head[2:] if self.configuration else ()),
            *(CreateDataflow(_hinted(flow.description, uppers or {})) for flow in flows),
            *(Schedule(id_) for flow in flows for id_ in flow.scheduled if id_ not in _dropped(flow)),
            *self.peeks.values(),
            *(AllowCompaction(id_, since) for flow in flows for id_, since in flow.compaction.items()),
            *(AllowCompaction(id_, since) for id_, since in self._introspection.items()),
            *((InitializationComplete(),) if self.initialized else ()),
            *((AllowWrites(self.allowed),) if self.allowed is not None else ()),
            *(
                AllowWrites(token, id_)
                for flow in flows
                for id_, token in flow.allowed.items()
                if id_ not in _dropped(flow)
            ),
        )

    def _create(self, description: DataflowDescription) -> None:
        exports = description.exports
        if not exports or description.as_of == CLOSED:
            raise HistoryError(f"the dataflow {description.debug_name!r} exports nothing")
        if len(set(exports)) < len(exports):
            raise StillAlive(f"a dataflow exports one of {', '.join(exports)} twice")
        for id_ in exports:
            if id_ in self._exporters or id_ in self._introspected:
                raise StillAlive(f"a dataflow exports {id_}, which is alive")
        flow = Flow(description)
        self.flows[exports] = flow
        self._exporters |= dict.fromkeys(exports, flow)
        # Peeks on an earlier incarnation have had their error, and must not meet this one.
        self.peeks = {uuid: peek for uuid, peek in self.peeks.items() if peek.index not in exports}

    def _schedule(self, id_: str) -> bool:
        flow = self._exporters.get(id_)
        if flow is None or id_ in flow.scheduled or flow.since(id_) == CLOSED:
            return False
        flow.scheduled.append(id_)
        return True

    def _compact(self, command: AllowCompaction) -> bool:
        id_, frontier = command.id, command.frontier
        flow = self._exporters.get(id_)
        if flow is None:
            if id_ not in self._introspected:
                return False
            if frontier < self._introspection.get(id_, 0) or frontier == CLOSED:
                raise Regressed(f"AllowCompaction({id_}, {_shown(frontier)}) of a collection about the replica itself")
            self._introspection[id_] = frontier
            return True
        if flow.since(id_) == CLOSED:
            return False
        if frontier < flow.since(id_):
            raise Regressed(f"AllowCompaction({id_}, {_shown(frontier)}) after {_shown(flow.since(id_))}")
        flow.compaction[id_] = frontier
        if not flow.settle():
            exports = flow.description.exports
            del self.flows[exports]
            for each in exports:
                del self._exporters[each]
        return True

    def _allow(self, command: AllowWrites) -> bool:
        if command.id is None:
            if self.allowed is not None and command.token <= self.allowed:
                return False
            self.allowed = command.token
            return True
        flow = self._exporters.get(command.id)
        if flow is None or flow.since(command.id) == CLOSED:
            return False
        former = flow.allowed.get(command.id)
        if former is not None and command.token <= former:
            return False
        flow.allowed[command.id] = command.token
        return True

    @property
    def _introspected(self) -> frozenset[str]:
        introspection = None if self.instance is None else self.instance.introspection
        return frozenset() if introspection is None else frozenset(introspection.log_ids.values())


def _once(former: object) -> None:
    if former is not None:
        raise Repeated("a command that comes once came twice")


def _dropped(flow: Flow) -> set[str]:
    return {id_ for id_, since in flow.compaction.items() if since == CLOSED}


def _hinted(description: DataflowDescription, uppers: Mapping[str, int]) -> DataflowDescription:
    if not any(source.id in uppers for source in description.sources):
        return description
    sources = tuple(replace(source, upper=uppers.get(source.id, source.upper)) for source in description.sources)
    return replace(description, sources=sources)


def _shown(frontier: int) -> str:
    return "∅" if frontier == CLOSED else str(frontier)
