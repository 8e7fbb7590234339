"""Groups in virtual time, all of it from one seed (docs/specs/swim.md 19.1).

A fake UDP with loss, delay, duplication, reordering (by delay) and cuts per direction; processes that stall with their
input queued, stop without a word and start again; invariants (19.2) after every event.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from pavane.swim.config import Config
from pavane.swim.core.core import Core
from pavane.swim.core.outputs import Event, Happened, Own, Persist, Send
from pavane.swim.wire.values import Address, State
from tests.sim.kit.scheduler import Scheduler
from tests.sim.swim.checks import Checks

UNIX_S = 1_750_000_000.0
USUAL_DELAY_S = (0.0002, 0.002)
LATE_DELAY_S = (0.02, 0.3)
ASSEMBLED_S = 8.0  # in which everybody probes a few others


@dataclass
class Weather:
    """How bad the network is at the moment: shares of datagrams that are lost, late and doubled."""

    loss: float = 0.0
    late: float = 0.0
    duplicate: float = 0.0


@dataclass(eq=False)
class Process:
    """One running core. ``skew_s`` is how wrong its wall clock is."""

    name: str
    address: Address
    core: Core
    up: bool = True
    stalled: bool = False
    inbox: list[tuple[Address, bytes]] = field(default_factory=list)
    armed: float | None = None
    events: list[tuple[float, Event]] = field(default_factory=list)
    stored: Persist | None = None
    sent_bytes: int = 0
    sent: int = 0

    def happened(self, kind: Happened) -> list[Event]:
        return [event for _, event in self.events if event.kind is kind]

    def sees(self) -> dict[int, tuple[int, State]]:
        return {member.id: (member.gen, member.state) for member in self.core.members()}


class World(Scheduler):
    """Processes and their network."""

    def __init__(self, seed: int, *, check: bool = True, **config: Any) -> None:
        super().__init__(seed, begin_s=1000.0)
        self.weather = Weather()
        self.cuts: set[tuple[Address, Address]] = set()
        self.processes: dict[str, Process] = {}
        self.at: dict[Address, Process] = {}
        self.config = config
        self.checks = Checks(enabled=check)
        self.suspected: Counter[int] = Counter()
        self.trace: list[tuple[float, str, int]] = []
        self.tap: Callable[[Process, Address, bytes], None] | None = None

    def must(self, condition: Callable[[], bool], seconds: float, what: str) -> float:
        took = self.until(condition, seconds)
        assert took is not None, f"seed {self.seed}: not within {seconds} s: {what}\n{self.picture()}"
        return took

    def picture(self) -> str:
        lines = []
        for process in self.processes.values():
            sees = ", ".join(f"{id_}.{gen}{state.name[0]}" for id_, (gen, state) in process.sees().items())
            lines.append(f"{process.name} up={process.up} {process.core.own} {process.core.info}: {sees}")
        return "\n".join(lines)

    # --- processes -----------------------------------------------------------------------------------------------

    def address(self, number: int) -> Address:
        return Address(bytes((10, 0, number >> 8, number & 0xFF)), 7946)

    def start(
        self, name: str, seeds: Iterable[str | Address] = (), *, address: Address | None = None, skew_s: float = 0.0,
        **config: Any,
    ) -> Process:  # fmt: skip
        """Start a process, or start it again; ``seeds`` are names or addresses."""
        old = self.processes.get(name)
        if address is None:
            address = old.address if old is not None else self.address(len(self.processes) + 1)
        settings = {"address": address, **self.config, **config}
        if settings.get("stored_gen") is not None and old is not None and old.stored is not None:
            settings["stored_gen"] = old.stored.gen
        entropy = random.Random(self.rng.getrandbits(64))
        core = Core(
            Config(**settings),
            random.Random(self.rng.getrandbits(64)),
            entropy.randbytes,
            self.time,
            UNIX_S + self.time + skew_s,
        )
        process = Process(name, address, core)
        self.processes[name] = self.at[address] = process
        self.checks.started(process)
        self.join(process, seeds)
        return process

    def join(self, process: Process, seeds: Iterable[str | Address] = ()) -> None:
        addresses = [self.processes[seed].address if isinstance(seed, str) else seed for seed in seeds]
        process.core.join(addresses, self.time)
        self.after(process)

    def kill(self, process: Process) -> None:
        process.up = False

    def leave(self, process: Process) -> None:
        process.core.leave(self.time)
        self.after(process)

    def stall(self, process: Process, seconds: float) -> None:
        """Freeze a process; its input is queued and read first when it goes on."""
        process.stalled = True
        self.schedule(self.time + seconds, lambda: self._thaw(process))

    def _thaw(self, process: Process) -> None:
        process.stalled = False
        inbox, process.inbox = process.inbox, []
        for source, datagram in inbox:
            self._receive(process, source, datagram)
        self._timer(process)

    def after(self, process: Process) -> None:
        """Do what a core asks for, and check it."""
        for output in process.core.outputs():
            if isinstance(output, Send):
                self._send(process, output)
            elif isinstance(output, Persist):
                process.stored = output
            else:
                process.events.append((self.time, output))
                if output.kind is Happened.SUSPECT and output.member is not None:
                    self.suspected[output.member.id] += 1
        self.checks.after(process)
        due = process.core.next_timer()
        if due is not None and (process.armed is None or due < process.armed):
            process.armed = due
            self.schedule(due, lambda: self._due(process, due))

    def _due(self, process: Process, at: float) -> None:
        if process.armed == at:  # else an earlier one took its place, and has set the next
            self._timer(process)

    def _timer(self, process: Process) -> None:
        process.armed = None
        if process.up and not process.stalled and self.processes[process.name] is process:
            process.core.handle_timer(self.time)
            self.after(process)

    # --- the network ---------------------------------------------------------------------------------------------

    def _send(self, process: Process, send: Send) -> None:
        self.checks.sent(process, send)
        process.sent += 1
        process.sent_bytes += len(send.datagram)
        if self.tap is not None:
            self.tap(process, send.to, send.datagram)
        copies = 1 + (self.weather.duplicate > 0 and self.rng.random() < self.weather.duplicate)
        for _ in range(copies):
            if not (self.weather.loss > 0 and self.rng.random() < self.weather.loss):
                self.carry(process.address, send.to, send.datagram)

    def carry(self, source: Address, to: Address, datagram: bytes) -> None:
        """Carry a datagram, also one that somebody forged."""
        late = self.weather.late > 0 and self.rng.random() < self.weather.late
        delay = self.rng.uniform(*(LATE_DELAY_S if late else USUAL_DELAY_S))
        self.schedule(self.time + delay, lambda: self._arrive(source, to, datagram))

    def _arrive(self, source: Address, to: Address, datagram: bytes) -> None:
        process = self.at.get(to)
        if process is None or not process.up or (source, to) in self.cuts:
            return
        if process.stalled:
            process.inbox.append((source, datagram))
        else:
            self._receive(process, source, datagram)

    def _receive(self, process: Process, source: Address, datagram: bytes) -> None:
        process.core.receive(source, datagram, self.time)
        self.after(process)

    def cut(self, one: Iterable[Process], other: Iterable[Process], *, both: bool = True) -> None:
        """Lose everything from ``one`` to ``other``, and back."""
        there = list(other)
        for first in one:
            for second in there:
                self.cuts.add((first.address, second.address))
                if both:
                    self.cuts.add((second.address, first.address))

    # --- conditions ----------------------------------------------------------------------------------------------

    @property
    def running(self) -> list[Process]:
        return [process for process in self.processes.values() if process.up and process.core.own is not Own.OUT]

    def all_see_all(self) -> bool:
        """Say whether every running process sees exactly the running ones, alive at their own generations.

        Equal digests of as many entries say that, because each holds the process itself as it knows itself to be.
        """
        digests = {process.core._node.members.digest(process.core._node.node) for process in self.running}
        return len(digests) == 1 and digests.pop().entries == len(self.running)

    def nobody_sees(self, node: int, at: Iterable[Process]) -> bool:
        peers = [process.core._node.members.get(node) for process in at]
        return not any(peer is not None and peer.live for peer in peers)

    def group(self, size: int, **config: Any) -> list[Process]:
        """Start a group whose members all know the first one, and wait until all see all."""
        members = [self.start("n1", **config)]
        members += [self.start(f"n{number}", ["n1"], **config) for number in range(2, size + 1)]
        self.must(self.all_see_all, 60, "the group forms")
        self.run(0.5 * size)
        return members

    def assemble(self, size: int) -> list[Process]:
        """Return a group whose members know each other from the beginning, in full view and without news."""
        members = [self.start(f"n{number}") for number in range(1, size + 1)]
        infos = sorted(process.core.info for process in members)
        for process in members:
            node = process.core._node
            first, *rest = [info for info in infos if info.id != node.id]
            node.add(first, State.ALIVE)
            for info in rest:
                node.members.add(info, State.ALIVE, node.now)
            node.news.clear()
            process.core.outputs()
            self.after(process)
        self.run(ASSEMBLED_S)
        return members
