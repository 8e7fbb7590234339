"""Whole courses of events, message by message (docs/specs/raft.md 18.3).

A file of ``golden/`` holds the script, each step followed by everything that was sent, stored and told because of it.
``pytest --rewrite`` writes the files anew: read the difference before you commit it.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from pavane.raft.config import REQUEST_ID_TTL_S
from pavane.raft.machines.commands import LeaseGrant, Put, Txn, encode_command
from pavane.raft.state.commands import Recovered
from pavane.raft.wire.decoder import Reply, Request
from pavane.raft.wire.entry import EntryType, encode_entry
from pavane.raft.wire.pv import PvKv, PvLease, PvTransfer
from pavane.raft.wire.replies import (
    AppendEntriesReply,
    EntriesStatus,
    RequestConfigReply,
    RequestEntriesReply,
    RequestLogInfoReply,
    RequestVoteReply,
    SnapshotPart,
)
from pavane.raft.wire.requests import AppendEntries, InstallSnapshot, RequestUpdate, RequestVote
from pavane.wire import Stage
from tests.services.raft.ensemble import IDENT, WALL_S, Ensemble, members, reqid, url

GOLDEN = Path(__file__).parent / "golden"
HELLO_MAGIC = b"pavane-raft".hex()
SNAPSHOT = bytes(range(100))  # what an application of the original program may have written
TERM = 3  # of what such a leader has
SEED = 1  # with it a is the first to stand
NOISE = ("PvHello", HELLO_MAGIC, "Note(", "KindChanged")  # carries random numbers and says nothing about the course

SCRIPTS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "first_election": ("abc", "", ("advance 0.8",)),
    "split_vote": (
        "abc",
        "",
        ("quiet", "advance 0.35", "down c", "loud", "expire a", "expire b", "settle", "advance 0.35"),
    ),
    "transfer": ("abc", "", ("quiet", "advance 0.9", "update a 1", "loud", "transfer a b", "advance 0.1")),
    "transfer_target_dies": (
        "abc",
        "",
        ("quiet", "advance 0.9", "update a 1", "down b", "loud", "transfer a b", "advance 0.4"),
    ),
    "commit_without_the_leaders_disk": (
        "abc",
        "",
        ("quiet", "advance 0.9", "loud", "stick a", "update a 1", "sync a", "advance 0.05"),
    ),
    "joint_change": (
        "abc",
        "d",
        ("quiet", "advance 0.9", "update a 1", "advance 0.3", "permit d", "loud", "change a 50 abd", "advance 0.1"),
    ),
    "rollback": (
        "abc",
        "",
        (
            "quiet",
            "advance 0.9",
            "update a 1",
            "isolate a",
            "loud",
            "change a 50 ab",
            "quiet",
            "advance 2.0",
            "join",
            "loud",
            "update c 2",
            "advance 0.1",
        ),
    ),
    "check_quorum": ("abc", "", ("quiet", "advance 0.9", "update a 1", "isolate a", "loud", "advance 0.62")),
    "checkpoint_for_open_entries": (
        "abc",
        "",
        ("quiet", "advance 0.9", "stick a", "deafen a b", "deafen a c", "update a 1", "down a", "loud", "advance 0.4"),
    ),
    "no_checkpoint_where_all_is_known": (
        "abc",
        "",
        ("quiet", "advance 0.9", "update a 1", "advance 0.2", "down a", "loud", "advance 0.4"),
    ),
    "new_leader_finishes_a_change": (
        "abc",
        "d",
        (
            "quiet",
            "advance 0.9",
            "update a 1",
            "advance 0.3",
            "permit d",
            "stick b",
            "stick c",
            "loud",
            "change a 50 bcd",
            "advance 0.01",
            "down a",
            "sync b",
            "sync c",
            "advance 0.35",
        ),
    ),
    "update_in_every_state": (
        "abc",
        "",
        (
            "quiet",
            "advance 0.9",
            "loud",
            "update b 1",
            "stick b",
            "stick c",
            "update a 1",
            "update a 1",
            "advance 0.21",
            "sync b",
            "update a 1",
            "stale a 2",
        ),
    ),
    "wiped_voter": ("abc", "", ("quiet", "advance 0.9", "update a 1", "advance 0.2", "loud", "wipe b", "advance 0.12")),
    "prevote_with_originals": (
        "a|bc",
        "",
        (
            "quiet",
            "advance 0.05",
            "say b a is empty",
            "advance 0.47",
            "loud",
            "say b a knows c",
            "say c a knows c",
            "advance 0.12",
            "say b a knows nobody",
            "advance 0.06",
        ),
    ),
    "original_followers": (
        "a|bc",
        "",
        (
            "quiet",
            "advance 0.05",
            "say b a is empty",
            "advance 0.65",
            "loud",
            "say b a votes yes",
            "advance 0.08",
            "say b a appends yes",
            "update a 1",
            "update a 2",
            "advance 0.11",
            "say b a appends yes",
            "say b a appends yes",
            "say c a appends no",
            "say c a appends yes",
            "say b a appends no 1",
            "say b a appends yes",
        ),
    ),
    "original_followers_step_by_step": (
        "a|bc",
        "",
        (
            "quiet",
            "advance 0.05",
            "say b a is empty",
            "advance 0.65",
            "say b a votes yes",
            "say b a appends yes",
            "update a 1",
            "update a 2",
            "say b a appends yes",
            "say b a appends yes",
            "down a",
            "up a",
            "advance 0.7",
            "loud",
            "say b a votes yes",
            "say b a appends no",
            "say b a appends no",
            "say b a appends yes",
            "say b a appends yes",
        ),
    ),
    "learner_of_an_original_leader": (
        "|abc",
        "d",
        (
            "advance 0.01",
            "say a d knows a",
            "advance 0.01",
            "say a d is leading 3",
            "advance 0.06",
            "say a d streams more 1 2",
            "say a d streams last 3",
            "advance 0.06",
            "say a d streams end 3",
            "advance 0.2",
            "say a d is leading 4",
            "say a d streams last 4",
            "advance 0.06",
            "say a d streams elsewhere b",
        ),
    ),
    "learner_behind_the_snapshot_of_an_original_leader": (
        "|abc",
        "d",
        (
            "advance 0.01",
            "say a d knows a",
            "advance 0.01",
            "say a d is leading 22",
            "advance 0.06",
            "say a d streams chunk 0 60",
            "say a d streams chunk 60 40",
            "say a d streams last 21 22",
            "advance 0.06",
        ),
    ),
    "follower_of_a_scripted_leader": (
        "b|ac",
        "",
        (
            "remembered b",
            "append b 1 4 0/0 0",
            "append b 2 3 0/0 0",  # of an older term
            "append b 3 4 5/4 0",  # beyond our last entry
            "append b 4 4 0/0 0 2 2 3",
            "append b 4 4 0/0 0 2",  # under the same id
            "append b 5 4 3/2 0",  # another term there
            "append b 6 4 3/3 2",
            "append b 7 4 1/2 2 2",  # entries that we have
            "append b 8 4 2/2 2 4 4",  # others than ours
            "append b 9 5 4/4 9",  # a newer term, a commit index beyond the message
            "append b a 5 0/0 9 2",  # from before our commit index
        ),
    ),
    "snapshots_of_a_scripted_leader": (
        "b|ac",
        "",
        (
            "remembered b",
            "append b 1 4 0/0 0 3 3",
            "chunk b 2 20/3 60 40",  # its beginning is not here
            "chunk b 3 20/3 0 60",
            "chunk b 4 20/3 0 60",  # again, under another id
            "chunk b 4 20/3 0 60",  # under the same
            "chunk b 5 20/3 60 40",
            "append b 6 4 20/3 20 3 3 3",
            "chunk b 7 22/3 0 100",  # of an entry that we have
            "chunk b 8 12/3 0 100",  # an older one
        ),
    ),
    "sticky": (
        "abc",
        "",
        (
            "quiet",
            "advance 0.9",
            "update a 1",
            "advance 0.1",
            "loud",
            "ballot b 2 1/1",
            "quiet",
            "down a",
            "advance 0.19",
            "loud",
            "ballot b 2 1/0",
            "ballot b 2 1/1",
        ),
    ),
    "learner_by_following": ("abc", "d", ("quiet", "advance 0.9", "update a 1", "loud", "advance 0.2")),
    "promotion": (
        "abc",
        "def",
        (
            "quiet",
            "advance 0.9",
            "update a 1",
            "advance 1.5",
            "permit def",
            "loud",
            "change a 50 def",
            "advance 0.1",
        ),
    ),
    "barrier_behind_an_outstanding_message": (
        "abc",
        "",
        ("quiet", "advance 0.9", "update a 1", "isolate a", "loud", "advance 0.08", "read a 0", "join", "advance 0.1"),
    ),
    "window_with_loss": (
        "abc",
        "",
        ("quiet", "advance 0.9", "loud", "isolate b", "update a 1", "join", "update a 2", "advance 0.015"),
    ),
    "prevote_refused": (
        "abc",
        "",
        ("quiet", "advance 0.9", "update a 1", "deafen b a", "advance 0.24", "loud", "advance 0.1"),
    ),
    "prevote_passed": ("abc", "", ("quiet", "advance 0.9", "update a 1", "down a", "loud", "advance 0.3")),
    "lease_expiry": ("abc", "", ("quiet", "advance 0.9", "grant a 300", "advance 0.2", "loud", "advance 0.15")),
    "lease_kept_by_a_new_leader": (
        "abc",
        "",
        (
            "quiet",
            "advance 0.9",
            "grant a 1000",
            "advance 0.4",
            "down a",
            "advance 0.7",
            "loud",
            "renew b 1",
            "advance 0.02",
            "quiet",
            "advance 0.9",
            "loud",
            "advance 0.15",
        ),
    ),
    "snapshot_for_a_follower": (
        "abc",
        "",
        (
            "quiet",
            "advance 0.9",
            "down c",
            "puts a 1 3",
            "advance 10.2",
            "puts a 4 40",
            "up c",
            "loud",
            "advance 0.35",
        ),
    ),
    "snapshot_for_a_learner": (
        "a",
        "b",
        (
            "quiet",
            "advance 0.9",
            "isolate b",
            "puts a 1 3",
            "advance 10.2",
            "puts a 4 40",
            "join",
            "loud",
            "advance 1.2",
        ),
    ),
    "lease_of_a_stopped_leader": (
        "a",
        "",
        (
            "quiet",
            "advance 0.9",
            "grant a 300",
            "advance 0.1",
            "loud",
            "stop 5",
            "renew a 1",
            "advance 0.25",
            "advance 0.1",
        ),
    ),
}


def _isolate(ensemble: Ensemble, name: str) -> None:
    for other in ensemble.everybody:
        ensemble.cuts |= {(name, other), (other, name)}


def _expire(ensemble: Ensemble, name: str) -> None:
    """Let one peer's election time-out come early; nothing is delivered before ``settle``."""
    election = ensemble.cores[name]._election
    election._deadline = ensemble.time
    election.timer()


def _permit(ensemble: Ensemble, names: str) -> None:
    for name in names:
        ensemble.cores[name].set_stage(Stage.READ_WRITE, ensemble.now())
    ensemble.settle()


def _stop(ensemble: Ensemble, seconds: str) -> None:
    """Let time go by in which no process runs."""
    ensemble.time += float(seconds)


def _grant(ensemble: Ensemble, name: str, ttl_ms: str) -> None:
    command = encode_command(LeaseGrant(int(ttl_ms), b"holder"))
    ensemble.ask(name, (reqid(1), *PvKv(command).encode(IDENT)), "holder")


def _puts(ensemble: Ensemble, name: str, first: str, last: str) -> None:
    for number in range(int(first), int(last) + 1):
        command = encode_command(Txn(then=(Put(b"key", b"%d" % number),)))
        ensemble.ask(name, (reqid(number), *PvKv(command).encode(IDENT)), "writer")


def _up(ensemble: Ensemble, name: str) -> None:
    ensemble.start(name, ensemble.disks[name].recovered(corrupt=False))
    ensemble.settle()


def _wipe(ensemble: Ensemble, name: str) -> None:
    ensemble.down(name)
    ensemble.disks[name].wipe()
    ensemble.start(name)


def _stale(ensemble: Ensemble, name: str, number: str) -> None:
    """Send an update whose id is older than ids are remembered."""
    frames = (reqid(int(number), WALL_S - REQUEST_ID_TTL_S), *RequestUpdate(b"data").encode(IDENT))
    ensemble.ask(name, frames, "client")


def _say(ensemble: Ensemble, peer: str, name: str, what: str, *words: str) -> None:
    """Let ``peer``, which is down, answer the newest question of a kind as the original program does."""
    core = ensemble.cores[name]
    reply = _reply_of(ensemble, peer, ensemble.status(name).term, (what, *words))
    asks = [ask for asks in core._requests._outstanding.values() for ask in asks.values()]
    ask = [ask for ask in asks if ask.to.url == url(peer) and ask.reply is type(reply)][-1]
    ensemble.trace.append(f"{ensemble.time:.3f} {peer} > {name} answer {ask.id.hex()} {reply}")
    core.reply(ask.to.peer, ask.to.channel, (ask.id, *reply.encode()), ensemble.now())
    ensemble.settle()


def _reply_of(ensemble: Ensemble, peer: str, term: int, words: tuple[str, ...]) -> Reply:
    match words:
        case "votes", word:
            return RequestVoteReply(term, word == "yes")
        case "appends", word, *hint:
            return AppendEntriesReply(term, word == "yes", int(hint[0]) if hint else None)
        case "knows", word:
            leader = None if word == "nobody" else word
            return RequestConfigReply(leader == peer, leader, members(ensemble.voters))
        case "is", "empty":
            return RequestLogInfoReply(False, None, 0, 1, 0, 0, 0, 0, 0)
        case "is", "leading", last:
            return RequestLogInfoReply(True, peer, TERM, 1, int(last), int(last), int(last), 0, 0)
        case "streams", "elsewhere", word:
            return RequestEntriesReply(EntriesStatus.NOT_LEADER, leader=word)
        case "streams", "chunk", offset, size:
            part = SnapshotPart(int(offset), len(SNAPSHOT), TERM)
            return RequestEntriesReply(EntriesStatus.SNAPSHOT, 20, (_piece(offset, size),), part=part)
        case "streams", "end", last:
            return RequestEntriesReply(EntriesStatus.LAST, int(last))
        case "streams", status, *indices:
            entries = tuple(_entry(int(index), TERM) for index in indices)
            return RequestEntriesReply(EntriesStatus[status.upper()], int(indices[-1]), entries)
    raise ValueError(f"nobody says {' '.join(words)}")


def _entry(index: int, term: int) -> bytes:
    return encode_entry(reqid(100 * term + index), EntryType.STATE, term, b"data")


def _piece(offset: str, size: str) -> bytes:
    return SNAPSHOT[int(offset) : int(offset) + int(size)]


def _remembered(ensemble: Ensemble, name: str) -> None:
    """Start a peer that has taken part before, so that nothing of it was lost."""
    ensemble.start(name, Recovered(term=1, vote="a"))


def _send(ensemble: Ensemble, name: str, number: str, message: Request) -> None:
    """Let ``a``, which is down, send a message to a peer; the answer is part of the trace."""
    ensemble.ask(name, (bytes.fromhex(number.zfill(2)), *message.encode(IDENT)), "a rpc b")


def _append(ensemble: Ensemble, name: str, number: str, term: str, previous: str, commit: str, *terms: str) -> None:
    at, _, term_at = previous.partition("/")
    entries = tuple(_entry(index, int(each)) for index, each in enumerate(terms, int(at) + 1))
    _send(ensemble, name, number, AppendEntries("a", int(term), int(at), int(term_at), int(commit), entries))


def _chunk(ensemble: Ensemble, name: str, number: str, last: str, offset: str, size: str) -> None:
    at, _, term_at = last.partition("/")
    piece = _piece(offset, size)
    _send(ensemble, name, number, InstallSnapshot("a", 4, int(at), int(term_at), int(offset), len(SNAPSHOT), piece))


def _ballot(ensemble: Ensemble, name: str, term: str, last: str) -> None:
    """Let ``c`` ask for a vote as the original program does."""
    at, _, term_at = last.partition("/")
    message = RequestVote("c", int(term), int(at), int(term_at))
    ensemble.ask(name, (b"\x77", *message.encode(IDENT)), "script")


def _renew(ensemble: Ensemble, name: str, lease: str) -> None:
    ensemble.ask(name, (b"renew", *PvLease([int(lease)]).encode(IDENT)), "holder")


STEPS: dict[str, Callable[..., object]] = {
    "advance": lambda ensemble, seconds: ensemble.advance(float(seconds)),
    "settle": lambda ensemble: ensemble.settle(),
    "expire": _expire,
    "update": lambda ensemble, name, number: ensemble.update(name, int(number)),
    "read": lambda ensemble, name, previous: ensemble.read(name, int(previous)),
    "transfer": lambda ensemble, name, to: ensemble.ask(name, (b"t", *PvTransfer(to).encode(IDENT)), "admin"),
    "change": lambda ensemble, name, number, names: ensemble.change(name, int(number), names),
    "permit": _permit,
    "stop": _stop,
    "grant": _grant,
    "puts": _puts,
    "up": _up,
    "renew": _renew,
    "wipe": _wipe,
    "stale": _stale,
    "say": _say,
    "remembered": _remembered,
    "append": _append,
    "chunk": _chunk,
    "ballot": _ballot,
    "stick": lambda ensemble, name: ensemble.stuck.add(name),
    "sync": lambda ensemble, name: (ensemble.stuck.discard(name), ensemble.sync(name)),
    "down": lambda ensemble, name: ensemble.down(name),
    "isolate": _isolate,
    "deafen": lambda ensemble, name, to: ensemble.cuts.add((to, name)),
    "join": lambda ensemble: ensemble.cuts.clear(),
}


def played(voters: str, learners: str, script: tuple[str, ...]) -> str:
    """Run a script; between ``quiet`` and ``loud`` the trace is left out."""
    cut = any(step.startswith("puts ") for step in script)
    keys = cut or any(step.startswith("grant ") for step in script)
    settings = {"snapshot_entries": 3, "log_retention": 0} if cut else {}
    present, _, absent = voters.partition("|")
    ensemble = Ensemble(present + absent, learners, absent=absent, seed=SEED, keys=keys, **settings)
    lines = [f"voters {voters}, learners {learners or '-'}"]
    loud = True
    for step in script:
        lines.append(f"# {step}")
        if step in {"quiet", "loud"}:
            loud = step == "loud"
            continue
        ensemble.trace.clear()
        word, *arguments = step.split()
        STEPS[word](ensemble, *arguments)
        lines += [line for line in ensemble.trace if loud and not any(noise in line for noise in NOISE)]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_course_is_as_written_down(name: str, request: pytest.FixtureRequest) -> None:
    course = played(*SCRIPTS[name])
    path = GOLDEN / f"{name}.txt"
    if request.config.getoption("--rewrite"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(course)
    assert path.read_text() == course


def test_every_golden_file_has_a_script() -> None:
    assert sorted(path.stem for path in GOLDEN.glob("*.txt")) == sorted(SCRIPTS)
