"""Any message of the compute protocol."""

from hypothesis import strategies as st

from pavane.compute import wire as w
from pavane.wire import Stage

U64 = st.integers(0, (1 << 64) - 1)
U32 = st.integers(0, (1 << 32) - 1)
NUMBERS = st.lists(U32, max_size=3).map(tuple)
TEXT = st.text(max_size=20)
NAMES = st.text(min_size=1, max_size=9)
DATA = st.binary(max_size=30)
UUIDS = st.binary(min_size=w.UUID_BYTES, max_size=w.UUID_BYTES)
SETTINGS = st.dictionaries(TEXT, TEXT, max_size=4)
TOKENS = st.builds(w.Token, U64, U64)
FRONTIERS = U64 | st.just(w.CLOSED)
OPTIONAL = st.none() | FRONTIERS
ROWS = st.builds(w.Rows, DATA, U64, U64)
FAILURES = st.builds(w.Failure, TEXT, TEXT, SETTINGS)
RELATIONS = st.builds(
    w.Relation, st.lists(st.builds(w.Column, TEXT, TEXT, st.booleans()), max_size=3).map(tuple), NUMBERS
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
SOURCES = st.builds(w.SourceImport, NAMES, RELATIONS, NUMBERS, TEXT, TEXT, NUMBERS, TEXT, OPTIONAL, st.booleans())
SINKS = st.builds(
    w.SinkExport,
    NAMES,
    TEXT,
    st.one_of(
        st.builds(w.MaterializedView, TEXT, RELATIONS, NUMBERS, TEXT, U64, U64),
        st.just(w.Subscribe()),
        st.builds(w.CopyTo, TEXT, TEXT, U64),
    ),
    st.booleans(),
    OPTIONAL,
    NUMBERS,
)
DATAFLOWS = st.builds(
    w.DataflowDescription,
    as_of=FRONTIERS,
    debug_name=TEXT,
    sources=st.lists(SOURCES, max_size=2).map(tuple),
    indexes=st.lists(st.builds(w.IndexImport, NAMES, RELATIONS, st.booleans()), max_size=2).map(tuple),
    steps=st.lists(st.builds(w.BuildStep, TEXT, DATA, RELATIONS), max_size=2).map(tuple),
    index_exports=st.lists(st.builds(w.IndexExport, NAMES, TEXT, NUMBERS), max_size=2).map(tuple),
    sink_exports=st.lists(SINKS, max_size=2).map(tuple),
    until=OPTIONAL,
)
FINISHINGS = st.builds(
    w.Finishing,
    st.lists(st.builds(w.Order, U32, st.booleans(), st.booleans()), max_size=2).map(tuple),
    st.none() | U64,
    U64,
    NUMBERS,
)
PEEKS = st.builds(
    w.Peek,
    uuid=UUIDS,
    timestamp=U64,
    literals=st.lists(st.builds(w.Literal, st.lists(VALUES, max_size=3).map(tuple)), max_size=2).map(tuple),
    map_filter_project=DATA,
    finishing=st.none() | FINISHINGS,
    result=st.none() | RELATIONS,
    index=TEXT,
) | st.builds(w.Peek, uuid=UUIDS, timestamp=U64, chain=TEXT)
COMMANDS: st.SearchStrategy[w.Command] = st.one_of(
    st.builds(
        w.CreateTimely,
        epoch=st.builds(w.Epoch, U64, U64),
        nonce=st.binary(min_size=w.NONCE_BYTES, max_size=w.NONCE_BYTES),
        config=st.builds(w.RuntimeConfig, U32, U32, st.lists(TEXT, max_size=3).map(tuple), SETTINGS),
        protocol_major=U32,
        protocol_minor=U32,
    ),
    st.builds(
        w.CreateInstance,
        NAMES,
        st.integers(1, (1 << 64) - 1),
        SETTINGS,
        st.none() | st.builds(w.Introspection, U32, SETTINGS),
        TEXT,
        st.none() | st.builds(w.TickLogRef, TEXT, U32, TEXT),
        TEXT,
    ),
    st.just(w.InitializationComplete()),
    st.builds(w.UpdateConfiguration, SETTINGS),
    st.builds(w.AllowWrites, TOKENS, st.none() | TEXT),
    st.builds(w.CreateDataflow, DATAFLOWS),
    st.builds(w.Schedule, NAMES),
    st.builds(w.AllowCompaction, NAMES, FRONTIERS),
    PEEKS,
    st.builds(w.CancelPeek, UUIDS),
)
RESPONSES: st.SearchStrategy[w.Response] = st.one_of(
    st.builds(w.Frontiers, NAMES, OPTIONAL, OPTIONAL, OPTIONAL),
    st.builds(
        w.PeekResponse,
        UUIDS,
        st.one_of(
            ROWS,
            st.builds(w.RowsPart, U32, st.booleans(), ROWS),
            st.builds(w.Stashed, TEXT, U64, U64),
            FAILURES,
            st.just(w.Canceled()),
        ),
    ),
    st.builds(w.SubscribeResponse, NAMES, st.builds(w.Batch, FRONTIERS, FRONTIERS, ROWS | FAILURES) | FRONTIERS),
    st.builds(w.CopyToResponse, NAMES, U64 | FAILURES | st.just(w.Dropped())),
    st.builds(
        w.StageReport,
        stage=st.sampled_from(Stage),
        generation=U64,
        fence_seen=st.none() | TOKENS,
        progress=U64,
        target=U64,
        unit=TEXT,
        blockers=st.lists(st.builds(w.Blocker, TEXT, TEXT, SETTINGS, st.booleans()), max_size=3).map(tuple),
        leads=st.booleans(),
        done=st.booleans(),
        last_write_ms=U64,
        first_write_ms=U64,
        write_gap_ms=U64,
    ),
    st.builds(w.HydrationReport, TEXT, st.booleans(), U64, U64),
    st.builds(w.EngineReport, U64, U64, TEXT),
)
