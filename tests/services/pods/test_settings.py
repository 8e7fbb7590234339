"""What a pod says when its environment or its config file is wrong."""

import gc
from typing import Any

import pytest
import zmq

from pavane.pods.main import run
from pavane.pods.raft_settings import RaftSettings, load
from pavane.runtime.settings import SettingsError
from tests.services.pods.raft_pods import SECRET, Pod, Pods


@pytest.fixture
def pod(pods: Pods, monkeypatch: pytest.MonkeyPatch) -> Pod:
    made = pods.add(3, 1)
    for name, value in made.environment().items():
        monkeypatch.setenv(name, value)
    return made


def test_everything_of_the_environment_arrives(pod: Pod) -> None:
    pod.configure(rpc_timeout=60, request_id_ttl_s=3600)
    config = load(RaftSettings.load())
    assert (config.peer.id, config.peer.generation, config.peer.ident) == ("db-server-g3-1", 3, SECRET)
    assert config.peer.url == "tcp://db-server-g3-1.db-server-g3.default.svc:8047"
    assert config.peer.broadcast_url == "tcp://db-server-g3-1.db-server-g3.default.svc:8048"
    assert config.peer.seeds == ("tcp://db.default.svc:8047", "tcp://db-server-g3.default.svc:8047")
    assert (config.peer.election_min, config.peer.rpc_timeout, config.peer.request_id_ttl_s) == (500, 60, 3600)
    assert config.peer.peers == ()
    assert config.cluster_id == "db"
    assert (config.bind, config.publish) == (f"tcp://{pod.address}:8047", f"tcp://{pod.address}:8048")
    assert config.source == pod.address


def test_a_pod_with_its_own_network_also_listens_where_a_forwarded_port_comes_in(
    pod: Pod, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POD_IP", "10.1.2.3")
    assert load(RaftSettings.load()).bind == "tcp://0.0.0.0:8047"


@pytest.mark.parametrize("secret", [b"", b"\n", b"\x00\xff", b"two\n\n"])
def test_a_secret_is_its_bytes_without_one_newline(pod: Pod, secret: bytes) -> None:
    (pod.folder / "secret").write_bytes(secret)
    assert load(RaftSettings.load()).peer.ident == secret.removesuffix(b"\n")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"election_min": 10}, "election_min: 10 must be at least 50"),
        ({"election_min": "soon"}, "election_min"),
        ({"election": 300}, "unknown key election; known are .*election_max"),
        ({"peers": [["a", "b"]]}, "unknown key peers"),
        ({"bootstrap": "seed"}, "unknown key bootstrap"),
        ({"ident": "x"}, "unknown key ident"),
        ({"machine": "Tape"}, "machine"),
        ({"seeds": 5}, "seeds"),
    ],
)
def test_a_wrong_setting_is_named(pod: Pod, settings: dict[str, Any], message: str) -> None:
    pod.configure(**settings)
    with pytest.raises(SettingsError, match=message):
        load(RaftSettings.load())


@pytest.mark.parametrize("text", ["", "- a\n", "a: [", "\x00"])
def test_a_file_that_is_no_map_is_named(pod: Pod, text: str) -> None:
    (pod.folder / "config.yaml").write_text(text)
    with pytest.raises(SettingsError, match=r"PAVANE_CONFIG: .*config.yaml"):
        load(RaftSettings.load())


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("PAVANE_GENERATION", "0"),
        ("PAVANE_GENERATION", "three"),
        ("PAVANE_CONFIG", "/no/such/file"),
        ("PAVANE_RAFT_URL", "tcp:nowhere"),
        ("PAVANE_RAFT_SECRET_FILE", "/no/such/file"),
    ],
)
def test_a_wrong_variable_is_named(pod: Pod, monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    assert pod.environment()[variable]
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingsError, match=variable):
        load(RaftSettings.load())


@pytest.mark.parametrize("variable", ["POD_IP", "POD_NAME", "PAVANE_GENERATION", "PAVANE_RAFT_DATA"])
def test_a_missing_variable_ends_the_pod_with_code_2_and_its_name(
    pod: Pod, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], variable: str
) -> None:
    monkeypatch.delenv(variable)
    collector = list(gc.callbacks)
    assert run() == 2
    assert gc.callbacks == collector, "a pod that never ran has changed the collector of the process that asked it"
    assert variable in capsys.readouterr().err
    assert variable in pod.termination_log.read_text()


@pytest.mark.parametrize("kind", ["SwimGroup", ""])
def test_a_kind_that_this_release_lacks_is_refused_in_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    monkeypatch.setenv("PAVANE_KIND", kind)
    monkeypatch.setenv("PAVANE_ROLE", "server")
    assert run() == 2
    assert "raft_server" in capsys.readouterr().err


@pytest.mark.parametrize("content", [None, b"", b"not a key"])
def test_a_curve_key_that_cannot_be_used_is_named_but_not_repeated(
    pod: Pod, monkeypatch: pytest.MonkeyPatch, content: bytes | None
) -> None:
    file = pod.folder / "curve"
    if content is not None:
        file.write_bytes(content)
    monkeypatch.setenv("PAVANE_RAFT_CURVE_SERVER_SECRET_FILE", str(file))
    with pytest.raises(SettingsError, match="PAVANE_RAFT_CURVE_SERVER_SECRET_FILE") as refused:
        load(RaftSettings.load())
    assert not content or content.decode() not in str(refused.value)


def test_curve_is_on_where_the_environment_names_the_key(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load(RaftSettings.load()).curve is None
    public, secret = zmq.curve_keypair()
    (pod.folder / "curve").write_bytes(secret + b"\n")
    monkeypatch.setenv("PAVANE_RAFT_CURVE_SERVER_SECRET_FILE", str(pod.folder / "curve"))
    monkeypatch.setenv("PAVANE_RAFT_CURVE_CLIENTS", str(pod.folder))
    curve = load(RaftSettings.load()).curve
    assert curve is not None
    assert (curve.public, curve.clients) == (public, pod.folder)
