"""A script as a dataflow of the compute protocol, and back (docs/specs/compute.md 5, 14).

Sources are the tables and steps the views, both under their names, because plans name what they read. A view's rows
leave the dataflow by exports, which have ids of their own.
"""

from __future__ import annotations

from collections.abc import Mapping

from pavane.compute.wire import commands, common
from pavane.dataflow.plan import Plan, PlanError
from pavane.dataflow.ports import CLOCK, Column, Format, Mode, Script, SqlView, Table

APPEND, DIFF, UPSERT = "append", "diff", "upsert"
"""Envelopes: what a row of a table means."""


class DescriptionError(Exception):
    """A dataflow that no script of this version can be."""


def described(
    script: Script, ids: Mapping[str, str], as_of: int, begins: Mapping[str, int]
) -> commands.DataflowDescription:
    """Return a script whose views are all written to chains of their names.

    By view, `ids` are the exports, and `begins` the ticks at which chains begin, or are to begin.
    """
    return commands.DataflowDescription(
        as_of,
        debug_name=", ".join(view.name for view in script.views),
        sources=tuple(_source(table) for table in script.tables),
        steps=tuple(commands.BuildStep(view.name, view.plan, _relation(view.columns)) for view in script.views),
        sink_exports=tuple(
            commands.SinkExport(
                ids[view.name],
                view.name,
                commands.MaterializedView(view.name, _relation(view.columns), initial_as_of=begins[view.name]),
            )
            for view in script.views
        ),
    )


def script_of(dataflow: commands.DataflowDescription) -> Script:
    """Return what a dataflow computes. Raises `DescriptionError`."""
    if unused := _unused(dataflow):
        raise DescriptionError(f"this replica does not use {', '.join(unused)}: leave it out")
    try:
        tables = tuple(_table(source) for source in dataflow.sources)
        views = tuple(
            SqlView(step.id, "", _columns(step.relation), Plan.decode(step.plan).tables, step.plan)
            for step in dataflow.steps
        )
    except (PlanError, ValueError, KeyError, TypeError, IndexError) as error:
        raise DescriptionError(
            f"the dataflow {dataflow.debug_name or dataflow.exports} cannot be read: {error}"
        ) from error
    known = {CLOCK, *(table.name for table in tables)}
    for view in views:
        if unknown := set(view.tables) - known:
            raise DescriptionError(
                f"the step {view.name} reads {', '.join(sorted(unknown))}, which does not stand before it"
            )
        known.add(view.name)
    names = {view.name for view in views}
    for id_, on in [(e.id, e.on) for e in dataflow.index_exports] + [(e.id, e.from_) for e in dataflow.sink_exports]:
        if on not in names:
            raise DescriptionError(f"the export {id_} names {on}, which is no step of its dataflow")
    return Script(tables, views)


def _unused(dataflow: commands.DataflowDescription) -> list[str]:
    """Return the fields that ask for what this version does not do."""
    found = ["an index of another dataflow, whose plan can be a step instead"] if dataflow.indexes else []
    found += ["until"] if dataflow.until is not None else []
    for sink in dataflow.sink_exports:
        view, asked = sink.connection, {"non_null": bool(sink.non_null)}
        if isinstance(view, commands.MaterializedView):
            asked |= {"up_to": sink.up_to is not None, "partition_by": bool(view.partition_by)}
            asked |= {"format": bool(view.format), "version": bool(view.version)}
        found += [f"{name} of {sink.id}" for name, is_asked in asked.items() if is_asked]
    return found


def _source(table: Table) -> commands.SourceImport:
    names = [column.name for column in table.columns]
    key = tuple(names.index(name) for name in table.key)
    envelope = UPSERT if key else DIFF if table.diff else APPEND
    return commands.SourceImport(
        table.name, _relation(table.columns), table.partitions, table.format.value, envelope, key, table.mode.value
    )


def _table(source: commands.SourceImport) -> Table:
    columns = _columns(source.relation)
    if source.envelope not in (APPEND, DIFF, UPSERT):
        raise ValueError(f"table {source.id}: the envelope {source.envelope!r} is not known")
    return Table(
        source.id,
        columns,
        source.partitions,
        Format(source.format),
        Mode(source.on_error),
        source.envelope == DIFF,
        tuple(columns[place].name for place in source.key) if source.envelope == UPSERT else (),
    )


def _relation(columns: tuple[Column, ...]) -> common.Relation:
    return common.Relation(tuple(common.Column(column.name, column.type) for column in columns))


def _columns(relation: common.Relation) -> tuple[Column, ...]:
    return tuple(Column(column.name, column.type) for column in relation.columns)
