"""What of a replica's dataflows stays when a controller tells the expected state again (docs/specs/compute.md 8)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from pavane.compute.state.history import Flow, History
from pavane.compute.wire.commands import (
    AllowCompaction,
    Command,
    CopyTo,
    CreateDataflow,
    CreateInstance,
    CreateTimely,
    DataflowDescription,
    RuntimeConfig,
    Subscribe,
)
from pavane.compute.wire.common import CLOSED


class Unfit(StrEnum):
    """Why a dataflow is built anew."""

    UNKNOWN = "unknown"
    INCOMPATIBLE = "incompatible"
    AS_OF = "as_of"
    COMPACTED = "compacted"
    SUBSCRIBE = "subscribe"
    COPY_TO = "copy_to"
    IMPORT = "import"


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """``drops`` first, then ``commands``. ``retained``: exports that go on; ``rebuilt``: why others do not."""

    drops: tuple[AllowCompaction, ...]
    commands: tuple[Command, ...]
    retained: frozenset[str]
    rebuilt: Mapping[tuple[str, ...], Unfit] = field(default_factory=dict)


def reconcile(old: History, new: Sequence[Command], *, reuse: bool = True) -> Reconciliation:
    """Return what turns the state of ``old`` into that of ``new``; without ``reuse`` everything is built anew."""
    flows = {frozenset(exports): flow for exports, flow in old.flows.items()}
    retained: set[str] = set()
    rebuilt: dict[tuple[str, ...], Unfit] = {}
    out: list[Command] = []
    for command in new:
        if isinstance(command, CreateTimely | CreateInstance):
            continue
        if isinstance(command, CreateDataflow):
            description = command.dataflow
            exports = description.exports
            flow = flows.get(frozenset(exports)) if reuse else None
            unfit = Unfit.UNKNOWN if flow is None else unfitness(flow, description, retained)
            if unfit is None:
                retained.update(exports)
                out.extend(AllowCompaction(id_, description.as_of) for id_ in exports)
                continue
            rebuilt[exports] = unfit
        out.append(command)
    drops = tuple(
        AllowCompaction(id_, CLOSED)
        for exports, flow in old.flows.items()
        for id_ in exports
        if id_ not in retained and flow.since(id_) != CLOSED
    )
    return Reconciliation(drops, tuple(out), frozenset(retained), rebuilt)


def unfitness(flow: Flow, wanted: DataflowDescription, retained: set[str]) -> Unfit | None:
    """Return why ``flow`` cannot serve as ``wanted``, ``None`` if it can; ``retained`` are exports that go on."""
    old = flow.description
    for sink in wanted.sink_exports:
        if isinstance(sink.connection, Subscribe):
            return Unfit.SUBSCRIBE
        if isinstance(sink.connection, CopyTo):
            return Unfit.COPY_TO
    if _essence(old) != _essence(wanted):
        return Unfit.INCOMPATIBLE
    if old.as_of > wanted.as_of:
        return Unfit.AS_OF
    if any(flow.since(id_) > wanted.as_of for id_ in wanted.exports):
        return Unfit.COMPACTED
    if any(index.id not in retained for index in wanted.indexes):
        return Unfit.IMPORT
    return None


def _essence(description: DataflowDescription) -> DataflowDescription:
    """The description without name, time and hints, its internal ids numbered in order of appearance."""
    steps = {step.id: f"t{number}" for number, step in enumerate(description.steps) if step.id.startswith("t")}
    indexes = (replace(each, on=steps.get(each.on, each.on)) for each in description.index_exports)
    sinks = (replace(each, from_=steps.get(each.from_, each.from_)) for each in description.sink_exports)
    return replace(
        description,
        as_of=0,
        debug_name="",
        sources=tuple(replace(source, upper=None) for source in description.sources),
        steps=tuple(replace(step, id=steps.get(step.id, step.id)) for step in description.steps),
        index_exports=tuple(sorted(indexes, key=lambda each: each.id)),
        sink_exports=tuple(sorted(sinks, key=lambda each: each.id)),
    )


def same_runtime(running: RuntimeConfig, wanted: RuntimeConfig, live: frozenset[str]) -> bool:
    """Whether an engine that runs can serve ``wanted``; options named in ``live`` may differ."""

    def fixed(config: RuntimeConfig) -> object:
        options = {key: value for key, value in config.engine.items() if key not in live}
        return config.workers, config.process, len(config.addresses), options

    return fixed(running) == fixed(wanted)
