"""Clusters of processes on loopback whose peers are ours or those of the npm package, in any mixture."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TypeVar

from pavane.raft.offline.store import StoredLog
from pavane.raft.wire.replies import RequestLogInfoReply
from tests.interop import raw
from tests.interop.raw import IDENT
from tests.services.ports import free_ports

WAIT_S = 30.0
PAUSE_S = 0.02
# Two loaded cores: with short time-outs a peer that waits for the processor loses its leadership. Who is wanted as
# leader stands for election long before the others.
ELECTION_MS = (1500, 2500)
FIRST_ELECTION_MS = (400, 600)
STOP_S = 10.0
LOG_LINES = 25

Result = TypeVar("Result")


class Kind(Enum):
    """Whose program a peer is."""

    OURS = "ours"
    JS = "js"


def until(condition: Callable[[], Result | None], what: str = "", seconds: float = WAIT_S) -> Result:
    """Return what ``condition`` returns once it is true."""
    pause = threading.Event()
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, f"not within {seconds} s: {what or condition}"
        pause.wait(PAUSE_S)
    return found


def free_urls(count: int) -> list[str]:
    return [f"tcp://127.0.0.1:{port}" for port in free_ports(count)]


@dataclass
class Member:
    """One peer: where it lives and, while it runs, its process."""

    id: str
    kind: Kind
    folder: Path
    url: str
    pub: str
    elections: tuple[int, int]
    process: subprocess.Popen[bytes] | None = None
    stopped: bool = False
    ended_by_us: bool = field(default=True)


class Cluster:
    """Peers with one-letter ids; ``kinds`` says whose each is. ``first`` is the one that leads if it can.

    ``elections`` are least and greatest election time-out in ms of all others.
    """

    def __init__(
        self,
        folder: Path,
        node: str,
        package: Path,
        kinds: Mapping[str, Kind],
        first: str = "",
        elections: tuple[int, int] = ELECTION_MS,
    ) -> None:
        self._folder = folder
        self._node = node
        self._package = package
        self._elections = elections
        self.members: dict[str, Member] = {}
        for id_, kind in kinds.items():
            self.add(id_, kind)
        self._first = first
        if first:
            self.members[first].elections = FIRST_ELECTION_MS
        self.seed = {member.id: member.url for member in self.members.values()}

    def add(self, id_: str, kind: Kind) -> Member:
        """Make room for one more peer; it does not run yet, and will only know those in ``seed``."""
        url, pub = free_urls(2)
        folder = self._folder / id_
        folder.mkdir(parents=True)
        self.members[id_] = Member(id_, kind, folder, url, pub, self._elections)
        return self.members[id_]

    # --- life ------------------------------------------------------------------------------------------------------

    def start(self, *ids: str) -> None:
        """Start peers and wait until they answer."""
        for id_ in ids:
            member = self.members[id_]
            with (self._folder / f"{id_}.log").open("ab") as log:
                member.process = subprocess.Popen(
                    self._command(member), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=os.environ.copy()
                )
            member.ended_by_us = member.stopped = False
        for id_ in ids:
            until(partial(self._answers, id_), f"peer {id_} answers")

    def start_all(self) -> None:
        """Start the members of the seed list; who is to lead first, for a busy machine starts one in seconds."""
        self.start(*self._first)
        self.start(*(id_ for id_ in self.seed if id_ != self._first))

    def kill(self, id_: str, number: signal.Signals = signal.SIGKILL) -> None:
        """End a peer and wait until it is gone."""
        member = self.members[id_]
        assert member.process is not None
        member.ended_by_us = True
        member.process.send_signal(number)
        if member.stopped and number != signal.SIGKILL:
            member.process.send_signal(signal.SIGCONT)
        try:
            member.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            member.process.kill()
            member.process.wait()
            if number != signal.SIGKILL:
                raise
        finally:
            member.process = None
        if number == signal.SIGKILL:
            # A peer of zmq-raft that is asked for its vote in a higher term waits anew, even if it refuses: another one
            # that asks sooner than all others, and whose log is older, would keep it from standing for ever.
            member.elections = self._elections

    def suspend(self, id_: str) -> None:
        """Let a peer run no further, as a machine that swaps or a process that is debugged."""
        member = self.members[id_]
        assert member.process is not None
        member.process.send_signal(signal.SIGSTOP)
        member.stopped = True

    def resume(self, id_: str) -> None:
        member = self.members[id_]
        assert member.process is not None
        member.process.send_signal(signal.SIGCONT)
        member.stopped = False

    def close(self) -> None:
        """End all that runs; fails if a peer had ended by itself."""
        died = [member.id for member in self.members.values() if self._died(member)]
        for member in self.members.values():
            if member.process is not None:
                self.kill(member.id)
        assert not died, "\n".join(f"peer {id_} ended by itself:\n{self.log(id_)}" for id_ in died)

    # --- what one can see --------------------------------------------------------------------------------------------

    @property
    def urls(self) -> list[str]:
        """Those of the peers that run."""
        return [member.url for member in self.members.values() if member.process is not None]

    def url(self, id_: str) -> str:
        return self.members[id_].url

    def peers(self, ids: str) -> list[tuple[str, str]]:
        """Return a configuration of these peers."""
        return [(id_, self.members[id_].url) for id_ in ids]

    def leader(self) -> str:
        """Return the id of the peer that leads and whose lead all members that run and are not stopped follow."""
        return until(self._leader, f"a leader of {sorted(self.members)}")

    def ready(self) -> None:
        """Wait until all peers take part; something was written before.

        A peer of ours that starts behind the first entry of a new cluster holds back until it has heard every other
        member; one that is killed before that makes it wait.
        """

        def takes_part(member: Member) -> bool:
            info = raw.log_info(member.url)
            if info is None or info.last_index == 0:
                return False
            return member.kind is Kind.JS or not raw.is_recovering(member.url)

        for member in self.members.values():
            until(partial(takes_part, member), f"peer {member.id} takes part")

    def led_by(self, id_: str) -> None:
        """Wait until ``id_`` leads."""
        until(lambda: self._leader() == id_, f"peer {id_} leads")

    def settled(self) -> int:
        """Wait until all peers hold and have applied the same; return the last index."""

        said: dict[str, RequestLogInfoReply | None] = {}

        def same() -> int | None:
            for id_, member in self.members.items():
                if member.process is not None:
                    said[id_] = raw.log_info(member.url)
            indices = {(i.last_index, i.commit_index, i.applied_index) for i in said.values() if i is not None}
            if None in said.values() or len(indices) != 1:
                return None
            last, commit, applied = indices.pop()
            return last if last == commit == applied else None

        try:
            return until(same)
        except AssertionError:
            raise AssertionError(f"the peers never come to hold the same: {said}") from None

    def log(self, id_: str) -> str:
        """Return the end of what a peer wrote to its terminal."""
        text = (self._folder / f"{id_}.log").read_text(encoding="utf-8", errors="replace")
        return "\n".join(text.splitlines()[-LOG_LINES:])

    def entries(self, id_: str) -> list[tuple[int, bytes]]:
        """Read a peer's log in its folder, each kind by its own code; the peer must be down."""
        member = self.members[id_]
        assert member.process is None
        if member.kind is Kind.JS:
            script = Path(__file__).parent / "zmq-raft" / "dump.js"
            said = subprocess.run(
                [self._node, "--no-deprecation", script, self._package, member.folder],
                check=True,
                capture_output=True,
                text=True,
            )
            lines = [line.split() for line in said.stdout.splitlines()]
            return [(int(index), bytes.fromhex(entry)) for index, entry in lines]
        with StoredLog(member.folder) as stored:
            return [(index, bytes(entry)) for index, entry in stored.entries()]

    # --- machinery ---------------------------------------------------------------------------------------------------

    def _answers(self, id_: str) -> bool:
        member = self.members[id_]
        assert not self._died(member), f"peer {id_} does not start:\n{self.log(id_)}"
        return raw.configuration(member.url, within_ms=200) is not None

    @staticmethod
    def _died(member: Member) -> bool:
        return member.process is not None and not member.ended_by_us and member.process.poll() is not None

    def _leader(self) -> str | None:
        members = [member for member in self.members.values() if member.process is not None and not member.stopped]
        said = {member.id: raw.configuration(member.url) for member in members}
        if None in said.values():
            return None
        leaders = {reply.leader for reply in said.values() if reply is not None}
        leading = [id_ for id_, reply in said.items() if reply is not None and reply.is_leader]
        return leading[0] if len(leading) == 1 and leaders == set(leading) else None

    def _command(self, member: Member) -> list[str]:
        return self._ours(member) if member.kind is Kind.OURS else self._js(member)

    def _ours(self, member: Member) -> list[str]:
        least, greatest = member.elections
        peers = ",".join(f"{id_}={url}" for id_, url in self.seed.items())
        return [
            *(sys.executable, "-m", "pavane_cli.main", "raft", "peer"),
            *("--id", member.id, "--data", str(member.folder), "--bind", member.url, "--pub", member.pub),
            *("--peers", peers, "--secret", IDENT.decode()),
            *("--election-min-ms", str(least), "--election-max-ms", str(greatest)),
        ]

    def _js(self, member: Member) -> list[str]:
        least, greatest = member.elections
        settings = {
            "id": member.id,
            "secret": IDENT.decode(),
            "peers": [{"id": id_, "url": url} for id_, url in self.seed.items()],
            "data": {"path": str(member.folder)},
            "router": {"bind": member.url},
            "broadcast": {"url": member.pub},
            "electionTimeoutMin": least,
            "electionTimeoutMax": greatest,
        }
        config = self._folder / f"{member.id}.json"
        config.write_text(json.dumps({"raft": settings}), encoding="utf-8")
        program = self._package / "node_modules" / "zmq-raft" / "bin" / "zmq-raft.js"
        return [self._node, "--no-deprecation", str(program), "-c", str(config), member.id]


@contextmanager
def running(cluster: Cluster) -> Iterator[Cluster]:
    """Start all peers of the seed list, and end all that runs afterwards."""
    try:
        cluster.start_all()
        yield cluster
    finally:
        cluster.close()
