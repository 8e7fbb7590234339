"""Any message of the compute protocol."""

from hypothesis import strategies as st

from pavane.compute.wire import commands, common, responses
from pavane.wire import Stage

U64 = st.integers(0, (1 << 64) - 1)
U32 = st.integers(0, (1 << 32) - 1)
NUMBERS = st.lists(U32, max_size=3).map(tuple)
TEXT = st.text(max_size=20)
NAMES = st.text(min_size=1, max_size=9)
DATA = st.binary(max_size=30)
UUIDS = st.binary(min_size=common.UUID_BYTES, max_size=common.UUID_BYTES)
SETTINGS = st.dictionaries(TEXT, TEXT, max_size=4)
TOKENS = st.builds(common.Token, U64, U64)
FRONTIERS = U64 | st.just(common.CLOSED)
OPTIONAL = st.none() | FRONTIERS
ROWS = st.builds(common.Rows, DATA, U64, U64)
FAILURES = st.builds(common.Failure, TEXT, TEXT, SETTINGS)
RELATIONS = st.builds(
    common.Relation, st.lists(st.builds(common.Column, TEXT, TEXT, st.booleans()), max_size=3).map(tuple), NUMBERS
)
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.floats(allow_nan=False),
    TEXT,
    DATA,
    st.decimals(allow_nan=False),
)
SOURCES = st.builds(
    commands.SourceImport, NAMES, RELATIONS, NUMBERS, TEXT, TEXT, NUMBERS, TEXT, OPTIONAL, st.booleans()
)
SINKS = st.builds(
    commands.SinkExport,
    NAMES,
    TEXT,
    st.one_of(
        st.builds(commands.MaterializedView, TEXT, RELATIONS, NUMBERS, TEXT, U64, U64),
        st.just(commands.Subscribe()),
        st.builds(commands.CopyTo, TEXT, TEXT, U64),
    ),
    st.booleans(),
    OPTIONAL,
    NUMBERS,
)
DATAFLOWS = st.builds(
    commands.DataflowDescription,
    as_of=FRONTIERS,
    debug_name=TEXT,
    sources=st.lists(SOURCES, max_size=2).map(tuple),
    indexes=st.lists(st.builds(commands.IndexImport, NAMES, RELATIONS, st.booleans()), max_size=2).map(tuple),
    steps=st.lists(st.builds(commands.BuildStep, TEXT, DATA, RELATIONS), max_size=2).map(tuple),
    index_exports=st.lists(st.builds(commands.IndexExport, NAMES, TEXT, NUMBERS), max_size=2).map(tuple),
    sink_exports=st.lists(SINKS, max_size=2).map(tuple),
    until=OPTIONAL,
)
FINISHINGS = st.builds(
    commands.Finishing,
    st.lists(st.builds(commands.Order, U32, st.booleans(), st.booleans()), max_size=2).map(tuple),
    st.none() | U64,
    U64,
    NUMBERS,
)
PEEKS = st.builds(
    commands.Peek,
    uuid=UUIDS,
    timestamp=U64,
    literals=st.lists(st.builds(commands.Literal, st.lists(VALUES, max_size=3).map(tuple)), max_size=2).map(tuple),
    map_filter_project=DATA,
    finishing=st.none() | FINISHINGS,
    result=st.none() | RELATIONS,
    index=TEXT,
) | st.builds(commands.Peek, uuid=UUIDS, timestamp=U64, chain=TEXT)
COMMANDS: st.SearchStrategy[commands.Command] = st.one_of(
    st.builds(
        commands.CreateTimely,
        epoch=st.builds(common.Epoch, U64, U64),
        nonce=st.binary(min_size=common.NONCE_BYTES, max_size=common.NONCE_BYTES),
        config=st.builds(commands.RuntimeConfig, U32, U32, st.lists(TEXT, max_size=3).map(tuple), SETTINGS),
        protocol_major=U32,
        protocol_minor=U32,
    ),
    st.builds(
        commands.CreateInstance,
        NAMES,
        st.integers(1, (1 << 64) - 1),
        SETTINGS,
        st.none() | st.builds(commands.Introspection, U32, SETTINGS),
        TEXT,
        st.none() | st.builds(commands.TickLogRef, TEXT, U32, TEXT),
        TEXT,
    ),
    st.just(commands.InitializationComplete()),
    st.builds(commands.UpdateConfiguration, SETTINGS),
    st.builds(commands.AllowWrites, TOKENS, st.none() | TEXT),
    st.builds(commands.CreateDataflow, DATAFLOWS),
    st.builds(commands.Schedule, NAMES),
    st.builds(commands.AllowCompaction, NAMES, FRONTIERS),
    PEEKS,
    st.builds(commands.CancelPeek, UUIDS),
)
RESPONSES: st.SearchStrategy[responses.Response] = st.one_of(
    st.builds(responses.Frontiers, NAMES, OPTIONAL, OPTIONAL, OPTIONAL),
    st.builds(
        responses.PeekResponse,
        UUIDS,
        st.one_of(
            ROWS,
            st.builds(responses.RowsPart, U32, st.booleans(), ROWS),
            st.builds(responses.Stashed, TEXT, U64, U64),
            FAILURES,
            st.just(responses.Canceled()),
        ),
    ),
    st.builds(
        responses.SubscribeResponse,
        NAMES,
        st.builds(responses.Batch, FRONTIERS, FRONTIERS, ROWS | FAILURES) | FRONTIERS,
    ),
    st.builds(responses.CopyToResponse, NAMES, U64 | FAILURES | st.just(responses.Dropped())),
    st.builds(
        responses.StageReport,
        stage=st.sampled_from(Stage),
        generation=U64,
        fence_seen=st.none() | TOKENS,
        progress=U64,
        target=U64,
        unit=TEXT,
        blockers=st.lists(st.builds(responses.Blocker, TEXT, TEXT, SETTINGS, st.booleans()), max_size=3).map(tuple),
        leads=st.booleans(),
        done=st.booleans(),
        last_write_ms=U64,
        first_write_ms=U64,
        write_gap_ms=U64,
    ),
    st.builds(responses.HydrationReport, TEXT, st.booleans(), U64, U64),
    st.builds(responses.EngineReport, U64, U64, TEXT),
)
