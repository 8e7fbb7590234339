"""An application connects to a log in one line, from outside its cluster too, and through rollouts (docs/waltz.md)."""

import asyncio
import base64
import json
import os
import shlex
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

import pavane
from pavane.application import LogConnection
from pavane.application.finding import LOG_VARIABLE
from pavane.runtime.names import HOSTS_FILE_VARIABLE
from pavane.waltz.client import Closed
from pavane.waltz.wire import messages as m
from pavane.waltz.wire.fields import ReqId
from pavane_api.kinds import WALTZ_CLUSTERS
from pavane_cli.failures import ExitCode, UserError
from pavane_cli.main import app
from pavane_operator.kube.resources import SECRETS
from tests.api.plane import Plane, plane
from tests.api.waltz import waltz_cluster
from tests.services.ambrosia.bank import alive
from tests.services.eventually import eventually
from tests.services.waltz.scripted import Cluster, running

WAIT_S = 60
SERVICE = "ledger.default.svc"

pytestmark = pytest.mark.timeout(3 * WAIT_S)

# Stands in for kubectl, for there are no containers here: it forwards as that does, for as long as the pod is there.
KUBECTL = """
import json, os, pathlib, socket, sys, threading
folder = pathlib.Path(__file__).parent
words = sys.argv[1:]
assert words[words.index("--namespace") + 1] == "default" and words[-3:-2] == ["127.0.0.1"], words
what, remote = words[-2], words[-1].removeprefix(":")
def target():
    return json.loads((folder / "pods").read_text()).get(what)
def gone():
    print("error: lost connection to pod", file=sys.stderr, flush=True)
    os._exit(1)
def copy(source, sink):
    try:
        while data := source.recv(65536):
            sink.sendall(data)
    except OSError:
        pass
    source.close(), sink.close()
    if target() is None:
        gone()
if target() is None:
    sys.exit(f'Error from server (NotFound): {what} not found')
with (folder / "started").open("a") as started:
    started.write(f"{what} {os.getpid()}\\n")
listener = socket.create_server(("127.0.0.1", 0))
print(f"Forwarding from 127.0.0.1:{listener.getsockname()[1]} -> {remote}", flush=True)
while True:
    taken, _ = listener.accept()
    try:
        made = socket.create_connection(("127.0.0.1", target() or gone()))
    except OSError:
        gone()
    for pair in ((taken, made), (made, taken)):
        threading.Thread(target=copy, args=pair, daemon=True).start()
"""


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


def pod(generation: int) -> str:
    return f"ledger-server-g{generation}-0"


def host(generation: int) -> str:
    return f"{pod(generation)}.ledger-server-g{generation}.default.svc"


class Outside:
    """A log of generations of one server, whose names are no names outside its cluster."""

    def __init__(self, api: Plane, log: Cluster, folder: Path) -> None:
        self.api = api
        self.log = log
        self.folder = folder
        log.hosts = [host(number) for number, _ in enumerate(log.servers, 1)]

        shutil.copy(api.local.kubeconfig, self.kubeconfig)

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "config"

    def serve(self, *generations: int) -> None:
        """These run; the last one is behind the Service."""
        raise NotImplementedError


class OnALaptop(Outside):
    """With a kubeconfig and kubectl."""

    def serve(self, *generations: int) -> None:
        kubectl = self.folder / "kubectl"
        if not kubectl.exists():
            (self.folder / "kubectl.py").write_text(KUBECTL)
            # a path with spaces is none in a line with #!
            kubectl.write_text(f"#!/bin/sh\nexec '{sys.executable}' '{self.folder}/kubectl.py' \"$@\"\n")
            kubectl.chmod(0o700)
        ports = {f"pod/{pod(number)}": self.log.servers[number - 1].port for number in generations}
        (self.folder / "new").write_text(json.dumps({"service/ledger": [*ports.values()][-1], **ports}))
        (self.folder / "new").rename(self.folder / "pods")

    def kubectls(self) -> dict[int, str]:
        """Those that run."""
        lines = [line.split() for line in (self.folder / "started").read_text().splitlines()]
        return {int(pid): what for what, pid in lines if alive(int(pid))}


class BesidePavaneUp(Outside):
    """With a local cluster, whose addresses stand in a file."""

    def serve(self, *generations: int) -> None:
        self.hosts.parent.mkdir(exist_ok=True)
        self.hosts.write_text("".join(f"127.0.0.1 {name}\n" for name in (SERVICE, *map(host, generations))))

    @property
    def hosts(self) -> Path:
        return self.kubeconfig.parent / "hosts" / "default"


@pytest.fixture
async def outside(
    stack: AsyncExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Any:
    api = await stack.enter_async_context(plane(tmp_path))
    log = await stack.enter_async_context(running(1, 2))
    (tmp_path / "laptop").mkdir()
    found = request.param(api, log, tmp_path / "laptop")
    found.serve(1)
    await waltz_cluster(api, [f"{SERVICE}:{log.servers[0].port}"])
    monkeypatch.delenv(HOSTS_FILE_VARIABLE)  # of the control plane, which is in this process
    monkeypatch.setenv("KUBECONFIG", str(found.kubeconfig))
    monkeypatch.setenv("PATH", f"{tmp_path / 'laptop'}:{os.environ['PATH']}")
    return found


@pytest.mark.parametrize("outside", [OnALaptop, BesidePavaneUp], indirect=True)
async def test_it_follows_rollouts_though_no_name_resolves(outside: Outside) -> None:
    log = outside.log
    async with await pavane.connect_log("ledger") as ledger:
        feed = ledger.feed(0)
        assert await ledger.append(0, b"first") == 0
        assert (await anext(feed)).data == b"first"
        outside.serve(1, 2)
        log.move(0, 1)
        assert await ledger.append(0, b"second") == 1
        outside.serve(2)
        await log.servers[0].kill()
        assert await ledger.append(0, b"third") == 2
        assert [(await anext(feed)).data, (await anext(feed)).data] == [b"second", b"third"]
        if isinstance(outside, OnALaptop):
            for pid, what in outside.kubectls().items():
                assert what == f"pod/{pod(2)}" or "service" in what
                os.kill(pid, signal.SIGKILL)
            assert await ledger.append(0, b"fourth") == 3
            assert (await anext(feed)).data == b"fourth"
        await feed.aclose()
    if isinstance(outside, OnALaptop):
        assert outside.kubectls() == {}


PROGRAM = """
import os, sys
import pavane
with pavane.connect_log_sync("ledger") as log:
    print(log.append(0, b"one"), log.append(0, b"two"), log.hwm(0), log.get(0, 1).data, flush=True)
    for tx in log.feed(0, from_=1):
        break
    print(tx.data, [each.data for each in log.read(0, 0, 9)], flush=True)
    seen = []
    with log.view(0, seen.append) as view:
        print(log.run(view.transact(lambda: b"three")), len(seen), flush=True)
    child = os.fork()
    if child == 0:
        try:
            log.hwm(0)
        except pavane.waltz.client.Closed as error:
            print(error, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
    sys.stdin.read()
"""


@pytest.mark.parametrize("outside", [OnALaptop], indirect=True)
async def test_a_program_without_asyncio_leaves_no_kubectl_however_it_ends(outside: OnALaptop) -> None:
    pipe = asyncio.subprocess.PIPE
    program = await asyncio.create_subprocess_exec(sys.executable, "-c", PROGRAM, stdin=pipe, stdout=pipe)
    assert program.stdout is not None
    async with asyncio.timeout(WAIT_S):
        said = [(await program.stdout.readline()).decode().rstrip() for _ in range(4)]
    assert said == [
        "0 1 1 b'two'",
        "b'two' [b'one', b'two']",
        "2 3",
        "this was connected before this process was forked; connect in each process",
    ]
    assert outside.kubectls()
    program.kill()
    await program.wait()
    await eventually(lambda: outside.kubectls() == {})


FOLLOWING = """
import pavane
try:
    with pavane.connect_log_sync("ledger") as log:
        for tx in log.feed(0):
            print(tx.id, flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


async def test_ctrl_c_ends_a_feed_as_it_ends_any_other_loop() -> None:
    async with running(1, 1) as log:
        log.logs[0].records.append(m.FeedItem(ReqId(1, 1, 0, 1), 0, b"one"))
        variable = {LOG_VARIABLE: LogConnection("ledger", tuple(log.addresses)).text()}
        program = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", FOLLOWING), stdout=asyncio.subprocess.PIPE, env=os.environ | variable
        )
        assert program.stdout is not None
        async with asyncio.timeout(WAIT_S):
            assert await program.stdout.readline() == b"0\n"
            program.send_signal(signal.SIGINT)
            assert await program.stdout.readline() == b"interrupted\n"
            assert await program.wait() == 0


CLOSING = """
import asyncio, os, signal, sys
from pathlib import Path
from pavane.application.forwarding import Cluster, Forwards
async def main():
    forwards = Forwards(Cluster(Path("config"), "default"))
    await forwards(("ledger.default.svc", 1))
    if "fork" in sys.argv and os.fork() == 0:
        signal.pause()
    await forwards.close()
    print("closed", flush=True)
asyncio.run(main())
"""


@pytest.mark.parametrize(("fork", "plugin"), [("fork", ""), ("", "sleep 600 &")], ids=["fork", "plugin"])
async def test_it_closes_whoever_else_holds_the_pipes_of_kubectl(tmp_path: Path, fork: str, plugin: str) -> None:
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(
        f"#!/bin/sh\necho $$ > '{tmp_path}/pid'\n{plugin}\necho 'Forwarding from 127.0.0.1:1 -> 1'\nsleep 600\n"
    )
    kubectl.chmod(0o700)
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", CLOSING, fork),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        start_new_session=True,
    )
    assert program.stdout is not None
    try:
        async with asyncio.timeout(WAIT_S):
            assert await program.stdout.readline() == b"closed\n"
        await eventually(lambda: not alive(int((tmp_path / "pid").read_text())))
    finally:
        with suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
        await program.wait()


@pytest.mark.parametrize("outside", [BesidePavaneUp], indirect=True)
async def test_what_is_printed_connects_and_what_is_wrong_is_said(
    outside: BesidePavaneUp, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def typed(*words: str) -> tuple[int, str]:
        result = await asyncio.to_thread(CliRunner().invoke, app, ["connection", *words])
        if isinstance(result.exception, UserError):
            return result.exception.code, str(result.exception)
        return result.exit_code, result.stdout

    _, of_file = await typed("waltz/ledger", "-o", "file")
    _, of_shell = await typed("waltz/ledger")
    assert shlex.split(of_shell) == ["export", f"{LOG_VARIABLE}={of_file.rstrip()}"]
    code, said = await typed("waltz/ledger", "--client", "billing")
    assert (code, "give it a rule in spec.clients.rights" in said) == (ExitCode.NOT_FOUND, True)
    secret = await outside.api.kube.get(SECRETS, "ledger-client", "default")
    data = {name: base64.b64encode(name.encode()).decode() for name in ("ca.crt", "tls.crt", "tls.key")}
    body = {"metadata": {"name": "ledger-client-billing"}, "data": secret["data"] | data}
    await outside.api.kube.create(SECRETS, body, "default")
    found = LogConnection.parse(
        (await typed("waltz/ledger", "--client", "billing", "-o", "file"))[1], "what was printed"
    )
    assert (found.authority, found.certificate, found.key) == ("ca.crt", "tls.crt", "tls.key")
    code, said = await typed("waltz/ledger", "-o", "java")
    assert (code, "find a log in ZooKeeper alone" in said) == (ExitCode.REFUSED, True)
    assert (await typed("swim/ledger"))[0] == ExitCode.USAGE
    zookeeper = {"connectString": "zk-0:2181,zk-1:2181", "root": "/waltz/ledger"}
    body = {"metadata": {"name": "old"}, "spec": {"metadata": {"zookeeper": zookeeper}}}
    await outside.api.kube.create(WALTZ_CLUSTERS, body, "default")
    assert await typed("waltz/old", "-o", "java") == (
        0,
        "zookeeper.connectString=zk-0:2181,zk-1:2181\nzookeeper.sessionTimeout=30000\ncluster.root=/waltz/ledger\n",
    )

    for name, says in (("absent", "^Name: there is no WaltzCluster absent in"), ("old", "^Quorum: old has no servers")):
        with pytest.raises(pavane.CannotConnect, match=says):
            await pavane.connect_log(name)
    config = yaml.safe_load(outside.kubeconfig.read_text())
    config["users"] = [{"name": each["name"], "user": {"exec": {"command": "aws"}}} for each in config["users"]]
    (tmp_path / "plugin").write_text(yaml.safe_dump(config))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "plugin"))
    with pytest.raises(
        pavane.CannotConnect, match=f"Keys: .*plugins.*set {LOG_VARIABLE} to what .*connection waltz/NAME"
    ):
        await pavane.connect_log("ledger")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    with pytest.raises(pavane.CannotConnect, match=f"Name: nothing here knows a cluster ledger.*{LOG_VARIABLE}"):
        await pavane.connect_log("ledger")
    monkeypatch.setenv(LOG_VARIABLE, of_file)
    with pytest.raises(pavane.CannotConnect, match=f"Name: {LOG_VARIABLE} is a connection to ledger, not to other"):
        await pavane.connect_log("other")
    async with await pavane.connect_log("ledger") as ledger:
        assert await ledger.append(0, b"by what was printed") == 0
    with pytest.raises(Closed):
        await ledger.hwm(0)
    nobody = LogConnection("ledger", (f"nowhere.{SERVICE}:1",), hosts=outside.hosts)
    with pytest.raises(pavane.CannotConnect, match=r"^Address: .*not in the hosts file.* \(tried for 0.1 s"):
        await pavane.connect_log("ledger", connection=nobody, timeout_s=0.1)
