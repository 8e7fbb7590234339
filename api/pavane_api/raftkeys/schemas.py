"""Keys, nodes, transactions and events as the REST API shows and takes them (docs/specs/raft.md 12.3, 12.6).

Bytes stand in base64, for a key may hold any. What is read here is written by the command line, which speaks this API.
"""

import base64
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias, get_args

from pydantic import BeforeValidator, ConfigDict, Field, PlainSerializer, WithJsonSchema

from pavane.raft.client import Changes, Item, NodeInfo
from pavane.raft.machines import commands
from pavane.raft.machines.commands import ANY_VERSION, Compare, Create, Op, Range, Relation, Target, Txn
from pavane.raft.machines.history import Event, Happened, Scope
from pavane.raft.wire.frames import UINT_MAX
from pavane_api.documents import StrictDocument

REQUEST_ID_PATTERN = "^[0-9a-f]{24}$"
REVISION_HEADER = "Pavane-Revision"
"""Of an answer that a key or node is not there: the revision of the read."""


def _decoded(value: object) -> object:
    return base64.b64decode(value, validate=True) if isinstance(value, str) else value


Base64 = Annotated[
    bytes,
    BeforeValidator(_decoded),
    PlainSerializer(lambda value: base64.b64encode(value).decode(), return_type=str),
    WithJsonSchema({"type": "string", "contentEncoding": "base64"}),
]
"""Bytes, in JSON as base64."""
Number = Annotated[int, Field(ge=0, le=UINT_MAX)]
"""A revision, or what is counted or measured."""
VersionOrAny = Annotated[int, Field(ge=ANY_VERSION, le=UINT_MAX)]
"""A version of a node; -1 is any, or that of no node."""
TargetName = Literal[
    "Value", "Version", "CreateRevision", "ModRevision", "Lease", "LeaseAlive", "DataVersion", "Cversion"
]
RelationName = Literal["Equal", "NotEqual", "Less", "Greater"]
EventName = Literal["Put", "Delete", "Expired", "Created", "Data", "Removed", "Children"]
ScopeName = Literal["Node", "Children", "NodeAndChildren", "Subtree"]


def name_of(member: Target | Relation | Happened | Scope) -> Any:
    """Return how the API writes a word of the protocol: MOD_REVISION is ModRevision."""
    return "".join(part.capitalize() for part in member.name.split("_"))


_TARGETS = {name_of(target): target for target in Target}
_RELATIONS = {name_of(relation): relation for relation in Relation}
_HAPPENED = {name_of(kind): kind for kind in Happened}
SCOPES = {name_of(scope): scope for scope in Scope}


class CompareDocument(StrictDocument):
    """One condition."""

    target: TargetName
    """What is looked at. LeaseAlive takes an empty key; DataVersion and Cversion take the path of a node."""
    relation: RelationName = "Equal"
    """How what is stored must stand to the operand."""
    key: Base64 = b""
    """The key or path."""
    value: Base64 | None = None
    """The operand of target Value; a missing key is less than every value."""
    number: VersionOrAny | None = None
    """The operand of all other targets; 0 stands for a missing key, -1 for a missing node."""

    def compare(self) -> Compare:
        """Return the condition; raises ``ValueError`` when the operand is missing or of the wrong kind."""
        operand = self.value if self.target == "Value" else self.number
        if operand is None:
            raise ValueError(f"a comparison with {self.target} needs {'value' if self.target == 'Value' else 'number'}")
        return Compare(_TARGETS[self.target], _RELATIONS[self.relation], self.key, operand)

    @classmethod
    def of(cls, compare: Compare) -> "CompareDocument":
        """Return how ``compare`` is written."""
        operand = compare.operand
        value, number = (operand, None) if isinstance(operand, bytes) else (None, operand)
        return cls(
            target=name_of(compare.target),
            relation=name_of(compare.relation),
            key=compare.key,
            value=value,
            number=number,
        )


class _Operation(StrictDocument):
    """One of several, told apart by ``op``: who sends it has to name it."""

    model_config = ConfigDict(json_schema_extra=lambda schema: schema["required"].insert(0, "op"))


class Put(_Operation):
    """Write a key."""

    op: Literal["Put"] = "Put"
    """What to do."""
    key: Base64
    """The key."""
    value: Base64
    """Its value."""
    lease: Number = 0
    """The lease that it goes with; 0 is none."""


class Delete(_Operation):
    """Delete a key if it is there."""

    op: Literal["Delete"] = "Delete"
    """What to do."""
    key: Base64
    """The key."""


class DeleteRange(_Operation):
    """Delete all keys of a range."""

    op: Literal["DeleteRange"] = "DeleteRange"
    """What to do."""
    start: Base64
    """The first key."""
    end: Base64 = b""
    """Before which key it ends; empty: ``start`` alone, one zero byte: the end of the key space."""


class ReadRange(_Operation):
    """Read the keys of a range."""

    op: Literal["Range"] = "Range"
    """What to do."""
    start: Base64
    """The first key."""
    end: Base64 = b""
    """As in DeleteRange."""
    limit: Number = 0
    """At most so many keys; 0 and more than 1000: 1000."""
    keys_only: bool = False
    """Leave the values out."""
    count_only: bool = False
    """Only count them."""
    descending: bool = False
    """Begin at the end."""

    def range(self) -> Range:
        """Return the op."""
        flags = Range.KEYS_ONLY * self.keys_only | Range.COUNT_ONLY * self.count_only
        return Range(self.start, self.end, self.limit, flags | Range.DESCENDING * self.descending)


class CreateNode(_Operation):
    """Create a node of the tree; its parent exists."""

    op: Literal["Create"] = "Create"
    """What to do."""
    path: Base64
    """Its path."""
    data: Base64 = b""
    """Its data."""
    lease: Number = 0
    """The lease that it goes with; 0 is none."""
    sequential: bool = False
    """Append the parent's counter to the name."""


class SetNode(_Operation):
    """Replace the data of a node."""

    op: Literal["Set"] = "Set"
    """What to do."""
    path: Base64
    """Its path."""
    data: Base64
    """Its new data."""
    version: VersionOrAny = ANY_VERSION
    """Only if it has this version; -1: any."""


class RemoveNode(_Operation):
    """Remove a node without children."""

    op: Literal["Remove"] = "Remove"
    """What to do."""
    path: Base64
    """Its path."""
    version: VersionOrAny = ANY_VERSION
    """Only if it has this version; -1: any."""


class CheckNode(_Operation):
    """Fail unless a node is there."""

    op: Literal["Check"] = "Check"
    """What to do."""
    path: Base64
    """Its path."""
    version: VersionOrAny = ANY_VERSION
    """And has this version; -1: any."""


class GetNode(_Operation):
    """Read a node."""

    op: Literal["Get"] = "Get"
    """What to do."""
    path: Base64
    """Its path."""


class ReadChildren(_Operation):
    """Read the names of a node's children."""

    op: Literal["Children"] = "Children"
    """What to do."""
    path: Base64
    """Its path."""


_AnyOp: TypeAlias = (
    Put | Delete | DeleteRange | ReadRange | CreateNode | SetNode | RemoveNode | CheckNode | GetNode | ReadChildren
)
OpDocument: TypeAlias = Annotated[_AnyOp, Field(discriminator="op")]


def op_of(document: _AnyOp) -> Op:
    """Return the op that a document stands for."""
    match document:
        case ReadRange():
            return document.range()
        case CreateNode(path=path, data=data, lease=lease, sequential=sequential):
            flags = (Create.EPHEMERAL if lease else 0) | (Create.SEQUENTIAL if sequential else 0)
            return Create(path, data, flags, lease)
    fields = {name: getattr(document, name) for name in type(document).model_fields if name != "op"}
    op: Op = getattr(commands, document.op)(**fields)
    return op


def document_of(op: Op) -> _AnyOp:
    """Return how ``op`` is written."""
    match op:
        case Range(start, end, limit, flags):
            return ReadRange(
                start=start,
                end=end,
                limit=limit,
                keys_only=bool(flags & Range.KEYS_ONLY),
                count_only=bool(flags & Range.COUNT_ONLY),
                descending=bool(flags & Range.DESCENDING),
            )
        case Create(path, data, flags, lease):
            return CreateNode(path=path, data=data, lease=lease, sequential=bool(flags & Create.SEQUENTIAL))
    return _DOCUMENTS[type(op).__name__](**{name: getattr(op, name) for name in op.__slots__})


_DOCUMENTS: Mapping[str, type[_AnyOp]] = {each.model_fields["op"].default: each for each in get_args(_AnyOp)}


class Transaction(StrictDocument):
    """What to do, atomically."""

    compare: list[CompareDocument] = Field(default_factory=list)
    """If all of these hold, ``then`` is carried out, else ``else``."""
    then: list[OpDocument] = Field(default_factory=list)
    """In this order."""
    otherwise: list[OpDocument] = Field(default_factory=list, alias="else")
    """In this order."""

    def txn(self) -> Txn:
        """Return the command; raises ``ValueError`` for a condition without its operand."""
        return Txn(
            tuple(compare.compare() for compare in self.compare),
            tuple(op_of(op) for op in self.then),
            tuple(op_of(op) for op in self.otherwise),
        )

    @classmethod
    def of(cls, txn: Txn) -> "Transaction":
        """Return how ``txn`` is written."""
        return cls(
            compare=[CompareDocument.of(compare) for compare in txn.compares],
            then=[document_of(op) for op in txn.then],
            otherwise=[document_of(op) for op in txn.otherwise],
        )


class Key(StrictDocument):
    """A key with its value."""

    key: Base64
    """The key."""
    value: Base64
    """Its value; empty if only keys were asked for."""
    create_revision: int
    """Revision at which it was created."""
    mod_revision: int
    """Revision at which it was written last."""
    version: int
    """How often it was written since it was created."""
    lease: int
    """The lease that it goes with; 0 is none."""

    @classmethod
    def of(cls, item: Item) -> "Key":
        """Return how ``item`` is written."""
        return cls(**{name: getattr(item, name) for name in item.__slots__})

    def fields(self) -> Iterator[Any]:
        """Return the fields of an ``Item`` in their order."""
        return (getattr(self, name) for name in Item.__slots__)


def cursor_of(key: bytes) -> str:
    """Return where a page ended, for a URL."""
    return base64.urlsafe_b64encode(key).decode("ascii")


def key_of(cursor: str) -> bytes:
    """Return the last key of the page before; raises ``ValueError`` for what is no cursor."""
    key = base64.urlsafe_b64decode(cursor)
    if cursor_of(key) != cursor:
        raise ValueError("it is not what an answer had as continue")
    return key


class KeyList(StrictDocument):
    """Keys in order, as they were at one revision."""

    items: list[Key]
    """At most ``limit`` of them, and 1 MiB."""
    more: bool
    """Whether the range goes on."""
    continue_: str | None = Field(None, alias="continue")
    """Pass it as ``continue``, all else unchanged, to get the next page; absent on the last one."""
    revision: int
    """Revision of the read; a watch that shall miss nothing begins at the next one."""
    count: int | None = None
    """How many keys the range has, if only that was asked for."""


class Node(StrictDocument):
    """A node of the tree."""

    data: Base64
    """Its data."""
    version: int
    """How often it was written since it was created."""
    cversion: int
    """Births and deaths of its children."""
    create_revision: int
    """Revision at which it was created."""
    mod_revision: int
    """Revision at which it was written last."""
    children: int
    """How many it has."""
    lease: int
    """The lease that it goes with; 0 is none."""

    @classmethod
    def of(cls, node: NodeInfo) -> "Node":
        """Return how ``node`` is written."""
        return cls(**{name: getattr(node, name) for name in node.__slots__})

    def fields(self) -> Iterator[Any]:
        """Return the fields of a ``NodeInfo`` in their order."""
        return (getattr(self, name) for name in NodeInfo.__slots__)


class NodeRead(StrictDocument):
    """A node or its children, as they were at one revision."""

    revision: int
    """Revision of the read; a watch that shall miss nothing begins at the next one."""
    node: Node | None = None
    """The node, unless its children were asked for."""
    children: list[Base64] | None = None
    """Names of its children in order, if they were asked for."""
    cversion: int | None = None
    """Births and deaths of children, with ``children``."""


class OpResult(StrictDocument):
    """What one op of a transaction came to; which fields there are is said by the op."""

    version: int | None = None
    """Put, Set: the version now."""
    deleted: int | None = None
    """Delete, DeleteRange: how many keys were there."""
    items: list[Key] | None = None
    """Range: what was found."""
    more: bool | None = None
    """Range: whether it goes on."""
    count: int | None = None
    """Range with countOnly: how many there are."""
    path: Base64 | None = None
    """Create: the path, which a sequential node is given."""
    node: Node | None = None
    """Get: the node; absent when there is none."""
    children: list[Base64] | None = None
    """Children: the names in order."""
    cversion: int | None = None
    """Children: births and deaths of children."""


_RESULTS: Mapping[type[Op], tuple[str, ...]] = {
    commands.Put: ("version",),
    commands.Delete: ("deleted",),
    commands.DeleteRange: ("deleted",),
    commands.Range: ("items", "more"),
    commands.Create: ("path",),
    commands.Set: ("version",),
    commands.Remove: (),
    commands.Check: (),
    commands.Get: ("node",),
    commands.Children: ("children", "cversion"),
}
"""Op → how the fields of its result are called, in the order of the protocol (docs/specs/raft.md 12.3)."""


def _counts(op: Op) -> bool:
    return isinstance(op, Range) and bool(op.flags & Range.COUNT_ONLY)


def result_of(op: Op, fields: Sequence[Any]) -> OpResult:
    """Return how the result of ``op`` is written; ``fields`` as ``TxnResult`` has them."""
    found = dict(zip(("count",) if _counts(op) else _RESULTS[type(op)], fields, strict=False))
    if "items" in found:
        found["items"] = [Key.of(Item(*item)) for item in found["items"]]
    if found.get("node") is not None:
        found["node"] = Node.of(NodeInfo(*found["node"]))
    return OpResult(**found)


def fields_of(op: Op, result: OpResult) -> list[Any]:
    """Return the result of ``op`` as the protocol has it, its number first (docs/specs/raft.md 12.3)."""
    if _counts(op):
        return [op.NUMBER, result.count, False]
    found = {name: getattr(result, name) for name in _RESULTS[type(op)]}
    if "items" in found:
        found = {"items": [list(item.fields()) for item in result.items or ()], "more": bool(result.more)}
    if found.get("node") is not None:
        found["node"] = list(found["node"].fields())
    return [op.NUMBER, *found.values()]


class TransactionResult(StrictDocument):
    """What a transaction came to."""

    succeeded: bool
    """Whether the conditions held, so that ``then`` was carried out."""
    revision: int
    """Its revision."""
    results: list[OpResult]
    """One per op of the branch that was carried out."""
    request_id: str = Field(pattern=REQUEST_ID_PATTERN)
    """The id under which a repetition of this request is recognised and told the same."""


class Written(StrictDocument):
    """An acknowledged write: it is on the disks of a majority."""

    revision: int
    """Its revision; of the key that was put the ETag."""
    request_id: str = Field(pattern=REQUEST_ID_PATTERN)
    """The id under which a repetition of this request is recognised and told the same."""


class Deleted(Written):
    """An acknowledged deletion."""

    deleted: bool
    """Whether the key was there."""


class LeaseRequest(StrictDocument):
    """A lease to be granted."""

    ttl_ms: int = Field(ge=1, le=UINT_MAX)
    """How long it lasts without a renewal, in milliseconds; brought into 200 ms to 1 h."""
    holder: str = Field("", max_length=256)
    """Who has it, for people."""


class Lease(StrictDocument):
    """A lease. Renew it every third of its time."""

    lease: int
    """Its id; keys and nodes that are written with it go when it ends."""
    ttl_ms: int
    """How long it lasts from this request on, in milliseconds."""


class EventDocument(StrictDocument):
    """One change."""

    kind: EventName
    """What happened. Expired: deleted with its lease; Created to Children are of the tree."""
    key: Base64
    """The key, or the path of the node."""
    data: Base64 | None = None
    """What was written; absent where nothing was."""
    version: int
    """Version of what was written, or the last one of what is gone."""
    mark: int
    """Lease of the key, or cversion of the node."""


class ChangesDocument(StrictDocument):
    """Everything that one command did to what is watched: the data of an event of the stream."""

    revision: int
    """Its revision, which is the id of the event too."""
    events: list[EventDocument]
    """In order; none where only the revision has moved on."""

    @classmethod
    def of(cls, changes: Changes) -> "ChangesDocument":
        """Return how ``changes`` is written."""
        events = [
            EventDocument(
                kind=name_of(Happened(event.kind)),
                key=event.key,
                data=event.data,
                version=event.version,
                mark=event.mark,
            )
            for event in changes.events
        ]
        return cls(revision=changes.revision, events=events)

    def changes(self) -> Changes:
        """Return them as the Raft client has them."""
        events = (
            Event(_HAPPENED[event.kind], event.key, event.data, event.version, event.mark) for event in self.events
        )
        return Changes(self.revision, tuple(events))
