"""What can be known before a local cluster starts: taken ports, a full disk, resources that would be refused."""

import contextlib
import errno
import re
import shutil
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pavane.pods.waltz_settings import SERVER_PORT, STORAGE_PORT
from pavane.runtime.ops import OPS_PORT
from pavane_cli.failures import ExitCode, UserError
from pavane_cli.target import unknown_kind
from pavane_local.kubelet.addresses import CLAIM_PORT
from pavane_operator.crds import raftcluster, swimgroup, waltzcluster
from pavane_operator.crds.definitions import API_VERSION, GROUP, all_kinds, spec_model
from pavane_operator.crds.fields import said_of_unknown
from pavane_operator.kinds.raft.names import PUBLISH_PORT, RAFT_PORT
from pavane_operator.kinds.swim.names import SWIM_PORT
from pavane_operator.objects.names import STAGE_PORT

API_PORT, HEALTH_PORT = 8000, 8080
PORTS: Mapping[int, str] = {CLAIM_PORT: "the claim of a block of addresses", STAGE_PORT: "pods", OPS_PORT: "pods"}
"""TCP ports that a local cluster cannot do without, and who listens there, each pod on an address of its own."""

PLATFORM_PORTS: Mapping[int, str] = {API_PORT: "the control plane", HEALTH_PORT: "the operator and the control plane"}
"""The same of operator and control plane."""

PROBE_ADDRESS = "127.63.255.254"  # of this machine, and of no pod: only who listens on all addresses is met there
DISK_FREE_BYTES_MIN = 128 * 1024 * 1024  # a cluster writes 10 MiB in its first minute; members refuse writes before 0
LISTENING = "0A"
UNKNOWN = "extra_forbidden"  # what pydantic calls a field that the model does not have
NAME_PATTERN = "[a-z]([-a-z0-9]*[a-z0-9])?"  # of resources, as the rule of their definitions
PORTS_OF_KINDS = {
    raftcluster.DEFINITION.name: (RAFT_PORT, PUBLISH_PORT),
    swimgroup.DEFINITION.name: (SWIM_PORT,),
    waltzcluster.DEFINITION.name: (SERVER_PORT, STORAGE_PORT),
}


def check(folder: Path, documents: Iterable[Mapping[str, Any]], *, bare: bool = False) -> None:
    """Raise ``UserError`` for the first thing that keeps a cluster from starting in ``folder``.

    ``bare`` is one without operator and control plane.
    """
    ports = dict(PORTS) if bare else {**PORTS, **PLATFORM_PORTS}
    for document in documents:
        check_document(document)
        kind = str(document.get("kind"))
        ports |= dict.fromkeys(PORTS_OF_KINDS.get(kind, ()), f"the pods of {kind} {_name(document)}")
    for port, user in ports.items():
        if _is_taken(port):
            raise UserError(
                f"port {port} is taken on all addresses by {_holder(port)}; {user} must listen there on addresses of "
                f"{PROBE_ADDRESS.partition('.')[0]}.64.0.0/10. Stop that program, or make it listen on a single address"
            )
    present = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())
    free = shutil.disk_usage(present).free
    if free < DISK_FREE_BYTES_MIN:
        raise UserError(
            f"{present}: only {free >> 20} MiB are free, and a cluster needs {DISK_FREE_BYTES_MIN >> 20}: make room, "
            "or name a folder on another disk with --folder"
        )


def check_document(document: Mapping[str, Any]) -> None:
    """Raise ``UserError`` for a resource of ours that the cluster would refuse; others are left to the cluster."""
    known = {kind.name: kind for kind in all_kinds()}
    name, version = document.get("kind"), str(document.get("apiVersion"))
    kind = known.get(str(name))
    if kind is None:
        if version.partition("/")[0] == GROUP:
            raise UserError(unknown_kind(str(name)), ExitCode.USAGE)
        return
    if not re.fullmatch(NAME_PATTERN, _name(document)):
        raise UserError(
            f"{name} {_name(document)}: the name must start with a letter and contain only lower-case letters, digits "
            "and '-'",
            ExitCode.USAGE,
        )
    if version != API_VERSION:
        raise UserError(f"{name} {_name(document)}: apiVersion is {version}, not {API_VERSION}", ExitCode.USAGE)
    try:
        spec_model(kind.name).model_validate(document.get("spec") or {})
    except ValidationError as error:
        lines = [_refused(kind.name, each["loc"], each["type"], each["msg"]) for each in error.errors()]
        raise UserError(f"{name} {_name(document)}: " + "\n  ".join(lines), ExitCode.USAGE) from error


def _refused(kind: str, place: tuple[int | str, ...], error: str, message: str) -> str:
    path = "spec" + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in place)
    return f"{path}: {said_of_unknown(kind, path) if error == UNKNOWN else message}"


def _name(document: Mapping[str, Any]) -> str:
    return str((document.get("metadata") or {}).get("name", ""))


def _is_taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: what ended just now is no obstacle
        try:
            probe.bind((PROBE_ADDRESS, port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


def _holder(port: int) -> str:
    """Say which process listens on ``port`` of all addresses, as far as we may see it."""
    for inode in _listening_everywhere(port):
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if any(_socket_of(each) == inode for each in (process / "fd").iterdir()):
                    program = (process / "comm").read_text(encoding="utf-8", errors="replace").strip()
                    return f"{program} (pid {process.name})"
    return f"a process that is not yours to see (try `sudo ss -ltnp sport = :{port}`)"


def _socket_of(descriptor: Path) -> str | None:
    with contextlib.suppress(OSError):
        found = re.fullmatch(r"socket:\[(\d+)\]", str(descriptor.readlink()))
        return found and found[1]
    return None


def _listening_everywhere(port: int) -> Iterable[str]:
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path("/proc/net", table).read_text(encoding="ascii").splitlines()[1:]:
                fields = line.split()
                address, _, number = fields[1].partition(":")
                if fields[3] == LISTENING and int(number, 16) == port and int(address, 16) == 0:
                    yield fields[9]
