# mypy: ignore-errors
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Stage(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STAGE_UNSPECIFIED: _ClassVar[Stage]
    CREATION: _ClassVar[Stage]
    INITIALIZATION: _ClassVar[Stage]
    READ_ONLY: _ClassVar[Stage]
    READ_WRITE: _ClassVar[Stage]
STAGE_UNSPECIFIED: Stage
CREATION: Stage
INITIALIZATION: Stage
READ_ONLY: Stage
READ_WRITE: Stage

class Time(_message.Message):
    __slots__ = ("tick", "more")
    TICK_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    tick: int
    more: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, tick: _Optional[int] = ..., more: _Optional[_Iterable[int]] = ...) -> None: ...

class Frontier(_message.Message):
    __slots__ = ("elements",)
    ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    elements: _containers.RepeatedCompositeFieldContainer[Time]
    def __init__(self, elements: _Optional[_Iterable[_Union[Time, _Mapping]]] = ...) -> None: ...

class Epoch(_message.Message):
    __slots__ = ("major", "minor")
    MAJOR_FIELD_NUMBER: _ClassVar[int]
    MINOR_FIELD_NUMBER: _ClassVar[int]
    major: int
    minor: int
    def __init__(self, major: _Optional[int] = ..., minor: _Optional[int] = ...) -> None: ...

class Token(_message.Message):
    __slots__ = ("generation", "epoch")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    generation: int
    epoch: int
    def __init__(self, generation: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class Rows(_message.Message):
    __slots__ = ("arrow_ipc", "row_count", "byte_count")
    ARROW_IPC_FIELD_NUMBER: _ClassVar[int]
    ROW_COUNT_FIELD_NUMBER: _ClassVar[int]
    BYTE_COUNT_FIELD_NUMBER: _ClassVar[int]
    arrow_ipc: bytes
    row_count: int
    byte_count: int
    def __init__(self, arrow_ipc: _Optional[bytes] = ..., row_count: _Optional[int] = ..., byte_count: _Optional[int] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("code", "text", "detail")
    class DetailEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    CODE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    code: str
    text: str
    detail: _containers.ScalarMap[str, str]
    def __init__(self, code: _Optional[str] = ..., text: _Optional[str] = ..., detail: _Optional[_Mapping[str, str]] = ...) -> None: ...

class Value(_message.Message):
    __slots__ = ("boolean", "int", "float", "text", "binary", "decimal", "null")
    BOOLEAN_FIELD_NUMBER: _ClassVar[int]
    INT_FIELD_NUMBER: _ClassVar[int]
    FLOAT_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    BINARY_FIELD_NUMBER: _ClassVar[int]
    DECIMAL_FIELD_NUMBER: _ClassVar[int]
    NULL_FIELD_NUMBER: _ClassVar[int]
    boolean: bool
    int: int
    float: float
    text: str
    binary: bytes
    decimal: str
    null: bool
    def __init__(self, boolean: _Optional[bool] = ..., int: _Optional[int] = ..., float: _Optional[float] = ..., text: _Optional[str] = ..., binary: _Optional[bytes] = ..., decimal: _Optional[str] = ..., null: _Optional[bool] = ...) -> None: ...

class Column(_message.Message):
    __slots__ = ("name", "type", "nullable")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    NULLABLE_FIELD_NUMBER: _ClassVar[int]
    name: str
    type: str
    nullable: bool
    def __init__(self, name: _Optional[str] = ..., type: _Optional[str] = ..., nullable: _Optional[bool] = ...) -> None: ...

class Relation(_message.Message):
    __slots__ = ("columns", "key")
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    columns: _containers.RepeatedCompositeFieldContainer[Column]
    key: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, columns: _Optional[_Iterable[_Union[Column, _Mapping]]] = ..., key: _Optional[_Iterable[int]] = ...) -> None: ...

class Command(_message.Message):
    __slots__ = ("create_timely", "create_instance", "initialization_complete", "update_configuration", "create_dataflow", "schedule", "allow_writes", "allow_compaction", "peek", "cancel_peek", "traceparent")
    CREATE_TIMELY_FIELD_NUMBER: _ClassVar[int]
    CREATE_INSTANCE_FIELD_NUMBER: _ClassVar[int]
    INITIALIZATION_COMPLETE_FIELD_NUMBER: _ClassVar[int]
    UPDATE_CONFIGURATION_FIELD_NUMBER: _ClassVar[int]
    CREATE_DATAFLOW_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    ALLOW_WRITES_FIELD_NUMBER: _ClassVar[int]
    ALLOW_COMPACTION_FIELD_NUMBER: _ClassVar[int]
    PEEK_FIELD_NUMBER: _ClassVar[int]
    CANCEL_PEEK_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    create_timely: CreateTimely
    create_instance: CreateInstance
    initialization_complete: InitializationComplete
    update_configuration: UpdateConfiguration
    create_dataflow: CreateDataflow
    schedule: Schedule
    allow_writes: AllowWrites
    allow_compaction: AllowCompaction
    peek: Peek
    cancel_peek: CancelPeek
    traceparent: str
    def __init__(self, create_timely: _Optional[_Union[CreateTimely, _Mapping]] = ..., create_instance: _Optional[_Union[CreateInstance, _Mapping]] = ..., initialization_complete: _Optional[_Union[InitializationComplete, _Mapping]] = ..., update_configuration: _Optional[_Union[UpdateConfiguration, _Mapping]] = ..., create_dataflow: _Optional[_Union[CreateDataflow, _Mapping]] = ..., schedule: _Optional[_Union[Schedule, _Mapping]] = ..., allow_writes: _Optional[_Union[AllowWrites, _Mapping]] = ..., allow_compaction: _Optional[_Union[AllowCompaction, _Mapping]] = ..., peek: _Optional[_Union[Peek, _Mapping]] = ..., cancel_peek: _Optional[_Union[CancelPeek, _Mapping]] = ..., traceparent: _Optional[str] = ...) -> None: ...

class CreateTimely(_message.Message):
    __slots__ = ("protocol_major", "protocol_minor", "epoch", "nonce", "config")
    PROTOCOL_MAJOR_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_MINOR_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    protocol_major: int
    protocol_minor: int
    epoch: Epoch
    nonce: bytes
    config: RuntimeConfig
    def __init__(self, protocol_major: _Optional[int] = ..., protocol_minor: _Optional[int] = ..., epoch: _Optional[_Union[Epoch, _Mapping]] = ..., nonce: _Optional[bytes] = ..., config: _Optional[_Union[RuntimeConfig, _Mapping]] = ...) -> None: ...

class RuntimeConfig(_message.Message):
    __slots__ = ("workers", "process", "addresses", "engine")
    class EngineEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    workers: int
    process: int
    addresses: _containers.RepeatedScalarFieldContainer[str]
    engine: _containers.ScalarMap[str, str]
    def __init__(self, workers: _Optional[int] = ..., process: _Optional[int] = ..., addresses: _Optional[_Iterable[str]] = ..., engine: _Optional[_Mapping[str, str]] = ...) -> None: ...

class CreateInstance(_message.Message):
    __slots__ = ("kind", "generation", "introspection", "result_store", "tick_log", "sink_root", "settings")
    class SettingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    KIND_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    INTROSPECTION_FIELD_NUMBER: _ClassVar[int]
    RESULT_STORE_FIELD_NUMBER: _ClassVar[int]
    TICK_LOG_FIELD_NUMBER: _ClassVar[int]
    SINK_ROOT_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    kind: str
    generation: int
    introspection: Introspection
    result_store: str
    tick_log: TickLogRef
    sink_root: str
    settings: _containers.ScalarMap[str, str]
    def __init__(self, kind: _Optional[str] = ..., generation: _Optional[int] = ..., introspection: _Optional[_Union[Introspection, _Mapping]] = ..., result_store: _Optional[str] = ..., tick_log: _Optional[_Union[TickLogRef, _Mapping]] = ..., sink_root: _Optional[str] = ..., settings: _Optional[_Mapping[str, str]] = ...) -> None: ...

class Introspection(_message.Message):
    __slots__ = ("interval_ms", "log_ids")
    class LogIdsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    LOG_IDS_FIELD_NUMBER: _ClassVar[int]
    interval_ms: int
    log_ids: _containers.ScalarMap[str, str]
    def __init__(self, interval_ms: _Optional[int] = ..., log_ids: _Optional[_Mapping[str, str]] = ...) -> None: ...

class TickLogRef(_message.Message):
    __slots__ = ("cluster", "partition", "collection")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    COLLECTION_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    partition: int
    collection: str
    def __init__(self, cluster: _Optional[str] = ..., partition: _Optional[int] = ..., collection: _Optional[str] = ...) -> None: ...

class InitializationComplete(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class UpdateConfiguration(_message.Message):
    __slots__ = ("settings",)
    class SettingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    settings: _containers.ScalarMap[str, str]
    def __init__(self, settings: _Optional[_Mapping[str, str]] = ...) -> None: ...

class Schedule(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class AllowWrites(_message.Message):
    __slots__ = ("id", "token")
    ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    id: str
    token: Token
    def __init__(self, id: _Optional[str] = ..., token: _Optional[_Union[Token, _Mapping]] = ...) -> None: ...

class AllowCompaction(_message.Message):
    __slots__ = ("id", "frontier")
    ID_FIELD_NUMBER: _ClassVar[int]
    FRONTIER_FIELD_NUMBER: _ClassVar[int]
    id: str
    frontier: Frontier
    def __init__(self, id: _Optional[str] = ..., frontier: _Optional[_Union[Frontier, _Mapping]] = ...) -> None: ...

class CreateDataflow(_message.Message):
    __slots__ = ("dataflow",)
    DATAFLOW_FIELD_NUMBER: _ClassVar[int]
    dataflow: DataflowDescription
    def __init__(self, dataflow: _Optional[_Union[DataflowDescription, _Mapping]] = ...) -> None: ...

class DataflowDescription(_message.Message):
    __slots__ = ("debug_name", "sources", "indexes", "steps", "index_exports", "sink_exports", "as_of", "until")
    DEBUG_NAME_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    INDEXES_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    INDEX_EXPORTS_FIELD_NUMBER: _ClassVar[int]
    SINK_EXPORTS_FIELD_NUMBER: _ClassVar[int]
    AS_OF_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    debug_name: str
    sources: _containers.RepeatedCompositeFieldContainer[SourceImport]
    indexes: _containers.RepeatedCompositeFieldContainer[IndexImport]
    steps: _containers.RepeatedCompositeFieldContainer[BuildStep]
    index_exports: _containers.RepeatedCompositeFieldContainer[IndexExport]
    sink_exports: _containers.RepeatedCompositeFieldContainer[SinkExport]
    as_of: Frontier
    until: Frontier
    def __init__(self, debug_name: _Optional[str] = ..., sources: _Optional[_Iterable[_Union[SourceImport, _Mapping]]] = ..., indexes: _Optional[_Iterable[_Union[IndexImport, _Mapping]]] = ..., steps: _Optional[_Iterable[_Union[BuildStep, _Mapping]]] = ..., index_exports: _Optional[_Iterable[_Union[IndexExport, _Mapping]]] = ..., sink_exports: _Optional[_Iterable[_Union[SinkExport, _Mapping]]] = ..., as_of: _Optional[_Union[Frontier, _Mapping]] = ..., until: _Optional[_Union[Frontier, _Mapping]] = ...) -> None: ...

class SourceImport(_message.Message):
    __slots__ = ("id", "relation", "partitions", "format", "envelope", "key", "on_error", "upper", "monotonic")
    ID_FIELD_NUMBER: _ClassVar[int]
    RELATION_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    ON_ERROR_FIELD_NUMBER: _ClassVar[int]
    UPPER_FIELD_NUMBER: _ClassVar[int]
    MONOTONIC_FIELD_NUMBER: _ClassVar[int]
    id: str
    relation: Relation
    partitions: _containers.RepeatedScalarFieldContainer[int]
    format: str
    envelope: str
    key: _containers.RepeatedScalarFieldContainer[int]
    on_error: str
    upper: Frontier
    monotonic: bool
    def __init__(self, id: _Optional[str] = ..., relation: _Optional[_Union[Relation, _Mapping]] = ..., partitions: _Optional[_Iterable[int]] = ..., format: _Optional[str] = ..., envelope: _Optional[str] = ..., key: _Optional[_Iterable[int]] = ..., on_error: _Optional[str] = ..., upper: _Optional[_Union[Frontier, _Mapping]] = ..., monotonic: _Optional[bool] = ...) -> None: ...

class IndexImport(_message.Message):
    __slots__ = ("id", "relation", "monotonic")
    ID_FIELD_NUMBER: _ClassVar[int]
    RELATION_FIELD_NUMBER: _ClassVar[int]
    MONOTONIC_FIELD_NUMBER: _ClassVar[int]
    id: str
    relation: Relation
    monotonic: bool
    def __init__(self, id: _Optional[str] = ..., relation: _Optional[_Union[Relation, _Mapping]] = ..., monotonic: _Optional[bool] = ...) -> None: ...

class BuildStep(_message.Message):
    __slots__ = ("id", "plan", "relation")
    ID_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    RELATION_FIELD_NUMBER: _ClassVar[int]
    id: str
    plan: bytes
    relation: Relation
    def __init__(self, id: _Optional[str] = ..., plan: _Optional[bytes] = ..., relation: _Optional[_Union[Relation, _Mapping]] = ...) -> None: ...

class IndexExport(_message.Message):
    __slots__ = ("id", "on", "key")
    ID_FIELD_NUMBER: _ClassVar[int]
    ON_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    id: str
    on: str
    key: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, id: _Optional[str] = ..., on: _Optional[str] = ..., key: _Optional[_Iterable[int]] = ...) -> None: ...

class SinkExport(_message.Message):
    __slots__ = ("id", "materialized_view", "subscribe", "copy_to", "emit_initial", "up_to", "non_null")
    ID_FIELD_NUMBER: _ClassVar[int]
    FROM_FIELD_NUMBER: _ClassVar[int]
    MATERIALIZED_VIEW_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIBE_FIELD_NUMBER: _ClassVar[int]
    COPY_TO_FIELD_NUMBER: _ClassVar[int]
    EMIT_INITIAL_FIELD_NUMBER: _ClassVar[int]
    UP_TO_FIELD_NUMBER: _ClassVar[int]
    NON_NULL_FIELD_NUMBER: _ClassVar[int]
    id: str
    materialized_view: MaterializedView
    subscribe: Subscribe
    copy_to: CopyTo
    emit_initial: bool
    up_to: Frontier
    non_null: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, id: _Optional[str] = ..., materialized_view: _Optional[_Union[MaterializedView, _Mapping]] = ..., subscribe: _Optional[_Union[Subscribe, _Mapping]] = ..., copy_to: _Optional[_Union[CopyTo, _Mapping]] = ..., emit_initial: _Optional[bool] = ..., up_to: _Optional[_Union[Frontier, _Mapping]] = ..., non_null: _Optional[_Iterable[int]] = ..., **kwargs) -> None: ...

class MaterializedView(_message.Message):
    __slots__ = ("chain", "relation", "partition_by", "format", "version", "initial_as_of")
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    RELATION_FIELD_NUMBER: _ClassVar[int]
    PARTITION_BY_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    INITIAL_AS_OF_FIELD_NUMBER: _ClassVar[int]
    chain: str
    relation: Relation
    partition_by: _containers.RepeatedScalarFieldContainer[int]
    format: str
    version: int
    initial_as_of: int
    def __init__(self, chain: _Optional[str] = ..., relation: _Optional[_Union[Relation, _Mapping]] = ..., partition_by: _Optional[_Iterable[int]] = ..., format: _Optional[str] = ..., version: _Optional[int] = ..., initial_as_of: _Optional[int] = ...) -> None: ...

class Subscribe(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CopyTo(_message.Message):
    __slots__ = ("url", "format", "max_file_bytes")
    URL_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    MAX_FILE_BYTES_FIELD_NUMBER: _ClassVar[int]
    url: str
    format: str
    max_file_bytes: int
    def __init__(self, url: _Optional[str] = ..., format: _Optional[str] = ..., max_file_bytes: _Optional[int] = ...) -> None: ...

class Peek(_message.Message):
    __slots__ = ("uuid", "timestamp", "index", "chain", "literals", "map_filter_project", "finishing", "result")
    UUID_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    LITERALS_FIELD_NUMBER: _ClassVar[int]
    MAP_FILTER_PROJECT_FIELD_NUMBER: _ClassVar[int]
    FINISHING_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    uuid: bytes
    timestamp: int
    index: str
    chain: str
    literals: _containers.RepeatedCompositeFieldContainer[Literal]
    map_filter_project: bytes
    finishing: Finishing
    result: Relation
    def __init__(self, uuid: _Optional[bytes] = ..., timestamp: _Optional[int] = ..., index: _Optional[str] = ..., chain: _Optional[str] = ..., literals: _Optional[_Iterable[_Union[Literal, _Mapping]]] = ..., map_filter_project: _Optional[bytes] = ..., finishing: _Optional[_Union[Finishing, _Mapping]] = ..., result: _Optional[_Union[Relation, _Mapping]] = ...) -> None: ...

class Literal(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedCompositeFieldContainer[Value]
    def __init__(self, values: _Optional[_Iterable[_Union[Value, _Mapping]]] = ...) -> None: ...

class Finishing(_message.Message):
    __slots__ = ("order", "limit", "offset", "project")
    ORDER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    PROJECT_FIELD_NUMBER: _ClassVar[int]
    order: _containers.RepeatedCompositeFieldContainer[Order]
    limit: int
    offset: int
    project: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, order: _Optional[_Iterable[_Union[Order, _Mapping]]] = ..., limit: _Optional[int] = ..., offset: _Optional[int] = ..., project: _Optional[_Iterable[int]] = ...) -> None: ...

class Order(_message.Message):
    __slots__ = ("column", "descending", "nulls_last")
    COLUMN_FIELD_NUMBER: _ClassVar[int]
    DESCENDING_FIELD_NUMBER: _ClassVar[int]
    NULLS_LAST_FIELD_NUMBER: _ClassVar[int]
    column: int
    descending: bool
    nulls_last: bool
    def __init__(self, column: _Optional[int] = ..., descending: _Optional[bool] = ..., nulls_last: _Optional[bool] = ...) -> None: ...

class CancelPeek(_message.Message):
    __slots__ = ("uuid",)
    UUID_FIELD_NUMBER: _ClassVar[int]
    uuid: bytes
    def __init__(self, uuid: _Optional[bytes] = ...) -> None: ...

class Response(_message.Message):
    __slots__ = ("frontiers", "peek", "subscribe", "copy_to", "status", "traceparent")
    FRONTIERS_FIELD_NUMBER: _ClassVar[int]
    PEEK_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIBE_FIELD_NUMBER: _ClassVar[int]
    COPY_TO_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    frontiers: Frontiers
    peek: PeekResponse
    subscribe: SubscribeResponse
    copy_to: CopyToResponse
    status: Status
    traceparent: str
    def __init__(self, frontiers: _Optional[_Union[Frontiers, _Mapping]] = ..., peek: _Optional[_Union[PeekResponse, _Mapping]] = ..., subscribe: _Optional[_Union[SubscribeResponse, _Mapping]] = ..., copy_to: _Optional[_Union[CopyToResponse, _Mapping]] = ..., status: _Optional[_Union[Status, _Mapping]] = ..., traceparent: _Optional[str] = ...) -> None: ...

class Frontiers(_message.Message):
    __slots__ = ("id", "write", "input", "output")
    ID_FIELD_NUMBER: _ClassVar[int]
    WRITE_FIELD_NUMBER: _ClassVar[int]
    INPUT_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    id: str
    write: Frontier
    input: Frontier
    output: Frontier
    def __init__(self, id: _Optional[str] = ..., write: _Optional[_Union[Frontier, _Mapping]] = ..., input: _Optional[_Union[Frontier, _Mapping]] = ..., output: _Optional[_Union[Frontier, _Mapping]] = ...) -> None: ...

class PeekResponse(_message.Message):
    __slots__ = ("uuid", "rows", "part", "stashed", "error", "canceled")
    UUID_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    STASHED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    CANCELED_FIELD_NUMBER: _ClassVar[int]
    uuid: bytes
    rows: Rows
    part: RowsPart
    stashed: Stashed
    error: Failure
    canceled: Canceled
    def __init__(self, uuid: _Optional[bytes] = ..., rows: _Optional[_Union[Rows, _Mapping]] = ..., part: _Optional[_Union[RowsPart, _Mapping]] = ..., stashed: _Optional[_Union[Stashed, _Mapping]] = ..., error: _Optional[_Union[Failure, _Mapping]] = ..., canceled: _Optional[_Union[Canceled, _Mapping]] = ...) -> None: ...

class RowsPart(_message.Message):
    __slots__ = ("number", "last", "rows")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    number: int
    last: bool
    rows: Rows
    def __init__(self, number: _Optional[int] = ..., last: _Optional[bool] = ..., rows: _Optional[_Union[Rows, _Mapping]] = ...) -> None: ...

class Stashed(_message.Message):
    __slots__ = ("url", "row_count", "byte_count")
    URL_FIELD_NUMBER: _ClassVar[int]
    ROW_COUNT_FIELD_NUMBER: _ClassVar[int]
    BYTE_COUNT_FIELD_NUMBER: _ClassVar[int]
    url: str
    row_count: int
    byte_count: int
    def __init__(self, url: _Optional[str] = ..., row_count: _Optional[int] = ..., byte_count: _Optional[int] = ...) -> None: ...

class Canceled(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SubscribeResponse(_message.Message):
    __slots__ = ("id", "batch", "dropped_at")
    ID_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    DROPPED_AT_FIELD_NUMBER: _ClassVar[int]
    id: str
    batch: Batch
    dropped_at: Frontier
    def __init__(self, id: _Optional[str] = ..., batch: _Optional[_Union[Batch, _Mapping]] = ..., dropped_at: _Optional[_Union[Frontier, _Mapping]] = ...) -> None: ...

class Batch(_message.Message):
    __slots__ = ("lower", "upper", "updates", "error")
    LOWER_FIELD_NUMBER: _ClassVar[int]
    UPPER_FIELD_NUMBER: _ClassVar[int]
    UPDATES_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    lower: Frontier
    upper: Frontier
    updates: Rows
    error: Failure
    def __init__(self, lower: _Optional[_Union[Frontier, _Mapping]] = ..., upper: _Optional[_Union[Frontier, _Mapping]] = ..., updates: _Optional[_Union[Rows, _Mapping]] = ..., error: _Optional[_Union[Failure, _Mapping]] = ...) -> None: ...

class CopyToResponse(_message.Message):
    __slots__ = ("id", "row_count", "error", "dropped")
    ID_FIELD_NUMBER: _ClassVar[int]
    ROW_COUNT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    id: str
    row_count: int
    error: Failure
    dropped: Dropped
    def __init__(self, id: _Optional[str] = ..., row_count: _Optional[int] = ..., error: _Optional[_Union[Failure, _Mapping]] = ..., dropped: _Optional[_Union[Dropped, _Mapping]] = ...) -> None: ...

class Dropped(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Status(_message.Message):
    __slots__ = ("stage", "hydration", "engine")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    HYDRATION_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    stage: StageReport
    hydration: HydrationReport
    engine: EngineReport
    def __init__(self, stage: _Optional[_Union[StageReport, _Mapping]] = ..., hydration: _Optional[_Union[HydrationReport, _Mapping]] = ..., engine: _Optional[_Union[EngineReport, _Mapping]] = ...) -> None: ...

class StageReport(_message.Message):
    __slots__ = ("stage", "generation", "fence_seen", "progress", "target", "unit", "blockers", "leads", "done", "last_write_ms", "first_write_ms", "write_gap_ms")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    FENCE_SEEN_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    BLOCKERS_FIELD_NUMBER: _ClassVar[int]
    LEADS_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    LAST_WRITE_MS_FIELD_NUMBER: _ClassVar[int]
    FIRST_WRITE_MS_FIELD_NUMBER: _ClassVar[int]
    WRITE_GAP_MS_FIELD_NUMBER: _ClassVar[int]
    stage: Stage
    generation: int
    fence_seen: Token
    progress: int
    target: int
    unit: str
    blockers: _containers.RepeatedCompositeFieldContainer[Blocker]
    leads: bool
    done: bool
    last_write_ms: int
    first_write_ms: int
    write_gap_ms: int
    def __init__(self, stage: _Optional[_Union[Stage, str]] = ..., generation: _Optional[int] = ..., fence_seen: _Optional[_Union[Token, _Mapping]] = ..., progress: _Optional[int] = ..., target: _Optional[int] = ..., unit: _Optional[str] = ..., blockers: _Optional[_Iterable[_Union[Blocker, _Mapping]]] = ..., leads: _Optional[bool] = ..., done: _Optional[bool] = ..., last_write_ms: _Optional[int] = ..., first_write_ms: _Optional[int] = ..., write_gap_ms: _Optional[int] = ...) -> None: ...

class Blocker(_message.Message):
    __slots__ = ("reason", "text", "detail", "info")
    class DetailEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    REASON_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    INFO_FIELD_NUMBER: _ClassVar[int]
    reason: str
    text: str
    detail: _containers.ScalarMap[str, str]
    info: bool
    def __init__(self, reason: _Optional[str] = ..., text: _Optional[str] = ..., detail: _Optional[_Mapping[str, str]] = ..., info: _Optional[bool] = ...) -> None: ...

class HydrationReport(_message.Message):
    __slots__ = ("id", "hydrated", "rows", "bytes")
    ID_FIELD_NUMBER: _ClassVar[int]
    HYDRATED_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    id: str
    hydrated: bool
    rows: int
    bytes: int
    def __init__(self, id: _Optional[str] = ..., hydrated: _Optional[bool] = ..., rows: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class EngineReport(_message.Message):
    __slots__ = ("restarts", "rows_per_second", "text")
    RESTARTS_FIELD_NUMBER: _ClassVar[int]
    ROWS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    restarts: int
    rows_per_second: int
    text: str
    def __init__(self, restarts: _Optional[int] = ..., rows_per_second: _Optional[int] = ..., text: _Optional[str] = ...) -> None: ...
