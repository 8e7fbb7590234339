"""What a cluster answers has one exit code, through the control plane and without it (docs/install.md)."""

import httpx2
import pytest

from pavane.raft import errors as raft
from pavane.raft.errors import Code
from pavane.waltz import errors as waltz
from pavane.waltz.errors import RejectCode
from pavane_api import raft_clients, waltz_clients
from pavane_cli import raft_reach, waltz_reach
from pavane_cli.failures import ExitCode, UserError
from pavane_cli.plane import RestClient


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (raft.ReqidTaken(bytes(12), sent_before=False), ExitCode.USAGE),
        (raft.Refused(Code.TOO_LARGE, "no"), ExitCode.USAGE),
        (raft.Refused(Code.NO_LEASE, "no"), ExitCode.NOT_FOUND),
        (raft.Refused(Code.NODE_EXISTS, "no"), ExitCode.REFUSED),
        (raft.WentBack(9, 8), ExitCode.NOT_FOUND),
        (raft.Overloaded(1), ExitCode.TIME_OUT),
        (raft.Unreachable((), 1.0), ExitCode.TIME_OUT),
        (raft.Closed("no"), ExitCode.TIME_OUT),
        (raft.ResultLost(1), ExitCode.REFUSED),
        (waltz.Conflict(0, 1), ExitCode.CONFLICT),
        (waltz.OutcomeUnknown(0, (0, 0, 0, 0)), ExitCode.OUTCOME_UNKNOWN),
        (waltz.Rejected(RejectCode.TOO_LARGE, 0, "no"), ExitCode.USAGE),
        (waltz.Rejected(RejectCode.BAD_REQUEST, 0, "no"), ExitCode.USAGE),
        (waltz.Rejected(RejectCode.READ_ONLY, 0, "no"), ExitCode.REFUSED),
        (waltz.Unavailable("no"), ExitCode.TIME_OUT),
        (waltz.Closed("no"), ExitCode.TIME_OUT),
    ],
    ids=str,
)
async def test_with_and_without_the_control_plane(error: raft.RaftError | waltz.WaltzError, code: ExitCode) -> None:
    if isinstance(error, raft.RaftError):
        met, problem = raft_reach.explained, raft_clients.problem_of(error)
    else:
        met, problem = waltz_reach.explained, waltz_clients.problem_of(error, "ledger")
    with pytest.raises(UserError) as direct, met():
        raise error
    told = {"type": f"https://pavane.dev/problems/{problem.kind}", "detail": problem.detail}
    answers = httpx2.MockTransport(lambda _: httpx2.Response(problem.status, json=told))
    async with httpx2.AsyncClient(transport=answers, base_url="http://api") as http:
        with pytest.raises(UserError) as through:
            await RestClient(http).get("/x")
    assert (direct.value.code, through.value.code) == (code, code)
