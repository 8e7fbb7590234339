"""A real Kubernetes control plane on the loopback address, without nodes: etcd, API server, controllers, scheduler.

    python -m e2e.kubernetes.control_plane FOLDER

RBAC is on. It starts in about 3 s, takes 0.5 GB and ends with the process that started it. Pods stay Pending until a
node registers (`e2e.kubernetes.kubelet`).
"""

import contextlib
import ctypes
import os
import secrets
import shutil
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from e2e.kubernetes.tools import CONTROL_PLANE, ToolError, find
from pavane_local.certs import ensure_credentials, kubeconfig, write_private
from tests.services.ports import free_ports

ADDRESS = "127.0.0.1"
START_S = 60.0
"""A start takes 3 s; a loaded machine takes longer."""
POLL_S = 0.05
LOG_SHOWN_BYTES = 2000
ISSUER = "https://kubernetes.default.svc.cluster.local"
USERS = {"admin": "system:masters", "system:kube-controller-manager": "", "system:kube-scheduler": ""}
"""Users with a fixed token, and their group; the last two have their rights by RBAC's built-in bindings."""
ENDPOINT_CONTROLLERS = ("endpoints-controller", "endpointslice-controller", "endpointslice-mirroring-controller")
PR_SET_PDEATHSIG = 1  # prctl(2)

_libc = ctypes.CDLL(None, use_errno=True)


class ControlPlaneError(Exception):
    """A program of the control plane ended or does not get ready; the text ends with its last words."""


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """A running control plane."""

    folder: Path
    server: str
    """URL of the API server."""
    authority: bytes
    """Certificate that clients trust."""

    @property
    def kubeconfig(self) -> Path:
        """Kubeconfig of a member of system:masters."""
        return self.folder / "kubeconfig"

    @property
    def certificate(self) -> Path:
        """Certificate of every server here, and the one by which the API server is known to kubelets."""
        return self.folder / "pki" / "server.crt"

    @property
    def key(self) -> Path:
        """Key of ``certificate``."""
        return self.folder / "pki" / "server.key"


@contextlib.contextmanager
def control_plane(folder: Path, *, endpoints: bool = True) -> Iterator[ControlPlane]:
    """Run a control plane in ``folder``; call it from the main thread.

    ``endpoints``: whether the controllers make EndpointSlices; the process kubelet brings its own. Data of a former
    run is thrown away. Raises ToolError when a program is missing, ControlPlaneError when one does not start.
    """
    programs = {name: str(_found(name)) for name in CONTROL_PLANE}
    folder = folder.absolute()
    shutil.rmtree(folder / "etcd", ignore_errors=True)
    pki = folder / "pki"
    ensure_credentials(pki)
    ports = free_ports(3)
    plane = ControlPlane(folder, f"https://{ADDRESS}:{ports[2]}", (pki / "server.crt").read_bytes())
    _write_users(plane)
    commands = {
        "etcd": _etcd(folder, ports[0], ports[1]),
        "kube-apiserver": _api_server(plane, ports[0], ports[2]),
        "kube-controller-manager": _controllers(plane, endpoints=endpoints),
        "kube-scheduler": _client_flags(plane, "system:kube-scheduler"),
    }
    with contextlib.ExitStack() as stack:
        for name, flags in commands.items():
            process = stack.enter_context(_running([programs[name], *flags], folder / f"{name}.log"))
            if name == "kube-apiserver":
                _until(plane, "/readyz", process, folder / f"{name}.log")
            if name == "kube-controller-manager":
                # What a test needs first of the controllers is this account.
                path = "/api/v1/namespaces/default/serviceaccounts/default"
                _until(plane, path, process, folder / f"{name}.log")
        yield plane


def _found(name: str) -> Path:
    path = find(name)
    if path is None:
        raise ToolError(f"{name} is missing: run `make e2e-tools`, or name its folder in PAVANE_ENVTEST_ASSETS")
    return path


def _write_users(plane: ControlPlane) -> None:
    lines = []
    for number, (user, group) in enumerate(USERS.items(), start=1):
        token = secrets.token_hex(16)
        lines.append(f'{token},{user},{number},"{group}"\n')
        text = kubeconfig(plane.server, plane.authority, token)
        write_private(_kubeconfig_of(plane, user), text.encode())
    write_private(plane.folder / "tokens.csv", "".join(lines).encode())


def _kubeconfig_of(plane: ControlPlane, user: str) -> Path:
    return plane.kubeconfig if user == "admin" else plane.folder / f"{user.rpartition(':')[2]}.kubeconfig"


def _etcd(folder: Path, client: int, peer: int) -> list[str]:
    # The data goes with the folder, so nothing waits for the disk.
    urls = f"http://{ADDRESS}:{client}", f"http://{ADDRESS}:{peer}"
    return [
        f"--data-dir={folder / 'etcd'}",
        "--unsafe-no-fsync",
        "--log-level=warn",
        f"--listen-client-urls={urls[0]}",
        f"--advertise-client-urls={urls[0]}",
        f"--listen-peer-urls={urls[1]}",
        f"--initial-advertise-peer-urls={urls[1]}",
        f"--initial-cluster=default={urls[1]}",
    ]


def _api_server(plane: ControlPlane, etcd: int, port: int) -> list[str]:
    # One pair for all: server, key of service-account tokens, and the certificate by which kubelets know this server.
    return [
        f"--bind-address={ADDRESS}",
        f"--advertise-address={ADDRESS}",
        f"--secure-port={port}",
        f"--tls-cert-file={plane.certificate}",
        f"--tls-private-key-file={plane.key}",
        f"--kubelet-client-certificate={plane.certificate}",
        f"--kubelet-client-key={plane.key}",
        f"--kubelet-certificate-authority={plane.certificate}",
        "--kubelet-preferred-address-types=InternalIP",
        f"--service-account-issuer={ISSUER}",
        f"--service-account-key-file={plane.certificate}",
        f"--service-account-signing-key-file={plane.key}",
        f"--etcd-servers=http://{ADDRESS}:{etcd}",
        # Addresses of Services, which no process reaches: names lead to pods (docs/specs/operator.md 6.8.5).
        "--service-cluster-ip-range=10.96.0.0/16",
        # Of the Service "kubernetes": a loopback address is refused in one.
        "--endpoint-reconciler-type=none",
        "--authorization-mode=Node,RBAC",
        f"--token-auth-file={plane.folder / 'tokens.csv'}",
        "--anonymous-auth=false",
        "--profiling=false",
    ]


def _controllers(plane: ControlPlane, *, endpoints: bool) -> list[str]:
    left_out = [] if endpoints else [f"--controllers={','.join(['*', *(f'-{name}' for name in ENDPOINT_CONTROLLERS)])}"]
    return [
        *_client_flags(plane, "system:kube-controller-manager"),
        # At its own limit of 20 requests a second it takes 4 s to start its controllers.
        "--kube-api-qps=500",
        "--kube-api-burst=1000",
        "--use-service-account-credentials",
        f"--service-account-private-key-file={plane.key}",
        f"--root-ca-file={plane.certificate}",
        *left_out,
    ]


def _client_flags(plane: ControlPlane, user: str) -> list[str]:
    # Port 0: nobody asks for metrics.
    return [f"--kubeconfig={_kubeconfig_of(plane, user)}", "--leader-elect=false", "--secure-port=0"]


@contextlib.contextmanager
def _running(command: list[str], log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a program; it is killed at the end, for nothing of it is kept and an orderly end takes seconds."""
    with log.open("wb") as file:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=dies_with(os.getpid()),  # noqa: PLW1509 - it calls nothing that takes a lock
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def dies_with(parent: int) -> Callable[[], None]:
    """What a child of ``parent`` (the main thread of that process) does so as not to outlive it."""

    def die() -> None:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return die


def _until(plane: ControlPlane, path: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    """Wait until the API server answers ``path`` with 200, or the program is gone."""
    token = (plane.folder / "tokens.csv").read_text().partition(",")[0]
    request = urllib.request.Request(plane.server + path, headers={"Authorization": f"Bearer {token}"})  # noqa: S310
    trust = ssl.create_default_context(cadata=plane.authority.decode())
    deadline = time.monotonic() + START_S
    while True:
        with contextlib.suppress(urllib.error.URLError, OSError):
            urllib.request.urlopen(request, timeout=START_S, context=trust).close()  # noqa: S310 - always https
            return
        if process.poll() is not None or time.monotonic() > deadline:
            words = log.read_bytes()[-LOG_SHOWN_BYTES:].decode(errors="replace")
            raise ControlPlaneError(f"{log.stem} is not ready; the end of {log}:\n{words}")
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(POLL_S)


def main() -> int:
    """Run a control plane until SIGINT or SIGTERM."""
    if len(sys.argv) != 2:
        sys.stderr.write(f"{__doc__}\n")
        return 2
    try:
        with control_plane(Path(sys.argv[1])) as plane:
            sys.stdout.write(f"export KUBECONFIG={plane.kubeconfig}\n")
            sys.stdout.flush()
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
            signal.sigwait({signal.SIGINT, signal.SIGTERM})
    except (ToolError, ControlPlaneError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
