"""Connections that go silent: a network namespace whose firewall drops chosen connections, without RST or FIN.

So does a restarted network plug-in, a flushed connection table, a NAT that forgot. New connections are let through.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.requires import refused, requires

CLONE_NEWNET = 0x40000000
NAMESPACE = Path("/proc/thread-self/ns/net")
COMMAND_S = 30
# At the input: what is dropped where it leaves is told to the sender's TCP, which then tries again sooner.
RULES = """
table inet silence {
  set gone { typeof ip saddr . tcp sport . ip daddr . tcp dport; }
  chain input {
    type filter hook input priority 0; policy accept;
    ip saddr . tcp sport . ip daddr . tcp dport @gone drop
  }
}
"""
END = r"(?:\[::ffff:)?(?P<{0}>[\d.]+)\]?:(?P<{0}_port>\d+)"
# gRPC has IPv4 by sockets of IPv6
LINE = re.compile(rf"{END.format('local')}\s+{END.format('peer')}\s.*?pid=(?P<pid>\d+)")

End = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Link:
    """An established connection: who made it, who accepted it (names of pods, or of programs), and its two ends."""

    client: str
    server: str
    ends: tuple[End, End]


class Namespace:
    """The network of the thread that entered it, and of all that it starts."""

    def silence(self, chosen: Callable[[Link], bool]) -> list[Link]:
        """Let no packet through on the present connections that are ``chosen``, for ever; returns them."""
        found = [link for link in self.links() if chosen(link)]
        assert found, "no such connection is there"
        pairs = [pair for link in found for pair in (link.ends, link.ends[::-1])]
        elements = ", ".join(f"{a} . {b} . {c} . {d}" for (a, b), (c, d) in pairs)
        run("nft", "-f", "-", given=f"add element inet silence gone {{ {elements} }}\n")
        return found

    def links(self) -> list[Link]:
        """The connections that are established now, but for those within one pod."""
        listening = {int(line.split()[3].rpartition(":")[2]) for line in run("ss", "-tlnH").splitlines()}
        owners: dict[tuple[End, End], str] = {}
        for line in run("ss", "-tnpH", "state", "established").splitlines():
            if found := LINE.search(line):
                ends = (found["local"], int(found["local_port"])), (found["peer"], int(found["peer_port"]))
                owners[ends] = owner(int(found["pid"]))
        return [
            Link(client, owners[ends[::-1]], ends)
            for ends, client in owners.items()
            if ends[1][1] in listening and client != owners.get(ends[::-1], client)
        ]


def owner(pid: int) -> str:
    """Name of the pod that a process belongs to, else the last part of its command line that says what it is."""
    with contextlib.suppress(OSError):
        environ = (Path("/proc") / str(pid) / "environ").read_bytes().split(b"\0")
        known = dict(each.partition(b"=")[::2] for each in environ)
        if b"PAVANE_ROOT" in known:
            return known[b"HOSTNAME"].decode()
        return str(pid)
    return ""


@contextlib.contextmanager
def namespace() -> Iterator[Namespace]:
    """Put this thread, and all that it starts, into a network of its own; skips where that is not permitted."""
    for program in ("nft", "ip", "ss"):
        requires(program)
    libc = ctypes.CDLL(None, use_errno=True)
    with NAMESPACE.open() as before:
        if libc.unshare(CLONE_NEWNET):
            refused("nft", f"no network namespace can be made: {os.strerror(ctypes.get_errno())}; run it as root")
        try:
            run("ip", "link", "set", "lo", "up")
            try:
                run("nft", "-f", "-", given=RULES)
            except subprocess.CalledProcessError as error:
                refused("nft", f"nft cannot set rules: {error.stderr.strip()}")
            yield Namespace()
        finally:
            assert libc.setns(before.fileno(), CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())


def run(*command: str, given: str = "") -> str:
    done = subprocess.run(command, input=given, check=True, capture_output=True, text=True, timeout=COMMAND_S)
    return done.stdout
