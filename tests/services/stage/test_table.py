"""Every command at every point of a stream: decided, and as the specification says (docs/specs/compute.md 2.2, 2.4)."""

from typing import get_args

import pytest

from pavane.compute.core.ports import EndStream
from pavane.compute.core.streams import Phase
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
    Lifecycle,
    Peek,
    Schedule,
    UpdateConfiguration,
)
from pavane.compute.wire.common import NONCE_BYTES, Epoch, Token
from pavane.stage.core import StageCore
from pavane.stage.table import TABLE, Decision, decide

GENERATION = 3
COMMANDS: dict[str, Command] = {
    "CreateTimely": CreateTimely(Epoch(1, 1), bytes(NONCE_BYTES)),
    "CreateInstance": CreateInstance("raft", GENERATION),
    "UpdateConfiguration": UpdateConfiguration({"key": "value"}),
    "InitializationComplete": InitializationComplete(),
    "AllowWrites": AllowWrites(Token(GENERATION, 1)),
    "CreateDataflow": CreateDataflow(DataflowDescription(as_of=1)),
    "Schedule": Schedule("u1"),
    "AllowCompaction": AllowCompaction("u1", 1),
    "Peek": Peek(bytes(16), 1, index="u1"),
    "CancelPeek": CancelPeek(bytes(16)),
}
LEAD_UP: tuple[Lifecycle, ...] = (
    CreateTimely(Epoch(1, 0), bytes(NONCE_BYTES)),
    CreateInstance("raft", GENERATION),
    InitializationComplete(),
)
OK, ORDER, UNKNOWN = None, "FAILED_PRECONDITION", "UNIMPLEMENTED"
# Per command: what the stream ends with at OPENED, GREETED, EXPECTING, COMPLETE; OK = it goes on.
EXPECTED = {
    "CreateTimely": (OK, ORDER, ORDER, ORDER),
    "CreateInstance": (ORDER, OK, ORDER, ORDER),
    "UpdateConfiguration": (ORDER, ORDER, OK, OK),
    "InitializationComplete": (ORDER, ORDER, OK, ORDER),
    "AllowWrites": (ORDER, ORDER, OK, OK),
    "CreateDataflow": (ORDER, ORDER, UNKNOWN, UNKNOWN),
    "Schedule": (ORDER, ORDER, UNKNOWN, UNKNOWN),
    "AllowCompaction": (ORDER, ORDER, UNKNOWN, UNKNOWN),
    "Peek": (ORDER, ORDER, UNKNOWN, UNKNOWN),
    "CancelPeek": (ORDER, ORDER, UNKNOWN, UNKNOWN),
}


def test_the_table_is_total() -> None:
    assert set(TABLE) == set(get_args(Command))
    for command in TABLE:
        for phase in Phase:
            assert isinstance(decide(phase, command), Decision)


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("name", COMMANDS)
def test_every_pair(name: str, phase: Phase) -> None:
    core = StageCore("raft", GENERATION)
    stream = core.open()
    for command in LEAD_UP[:phase]:
        core.receive(stream, command)
    stage = core.stage
    ended = [effect for effect in core.receive(stream, COMMANDS[name]) if isinstance(effect, EndStream)]
    expected = EXPECTED[name][phase]
    assert [(end.stream, end.code) for end in ended] == ([] if expected is None else [(stream, expected)])
    if expected is not None:
        assert core.stage is stage
        assert core.receive(stream, COMMANDS[name]) == ()
