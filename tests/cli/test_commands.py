import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from pavane_cli.commands.resources import is_current, is_settled, read_documents
from pavane_cli.commands.swim_control import path_of
from pavane_cli.failures import ExitCode, UserError
from pavane_cli.table import COMMANDS
from pavane_cli.target import nearest_local, parse_reference, required_reference


def pavane(*arguments: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "pavane_cli.main", *arguments],
        cwd=folder,
        env={"HOME": str(folder), "PATH": "/usr/bin:/bin", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_the_help_names_every_command(tmp_path: Path) -> None:
    result = pavane("--help", folder=tmp_path)
    assert result.returncode == 0, result.stderr
    named = {words.split()[0] for section in COMMANDS.values() for words in section}
    assert [name for name in named if f" {name} " not in result.stdout] == []


def test_a_wrong_command_is_a_usage_error(tmp_path: Path) -> None:
    assert pavane("dance", folder=tmp_path).returncode == ExitCode.USAGE


def test_a_word_that_is_no_text_is_a_usage_error(tmp_path: Path) -> None:
    asked = pavane("waltz", "get", "\udcff", "0", "--api", "http://127.0.0.1:1", "--token", "x", folder=tmp_path)
    assert (asked.returncode, "Traceback" in asked.stderr) == (ExitCode.USAGE, False)
    assert "is no text in UTF-8" in asked.stderr


@pytest.mark.parametrize(
    ("kind", "ready", "wanted", "settled"),
    [
        ("RaftCluster", 3, 3, True),
        ("RaftCluster", 1, 3, False),
        ("RaftCluster", 5, 3, False),
        ("RaftCluster", 0, 0, False),
        ("Coordinator", 1, 3, True),  # one leads, and the others wait
        ("Coordinator", 0, 3, False),
    ],
)
def test_what_is_waited_for_has_exactly_the_pods_that_it_shall_have(
    kind: str, ready: int, wanted: int, settled: bool
) -> None:
    conditions = [{"type": kind, "status": "True", "reason": "Serving"} for kind in ("Ready", "UpToDate")]
    generation = {"number": 1, "role": "Active", "podsReady": ready, "pods": wanted}
    status = {"observedGeneration": 2, "conditions": conditions, "generations": [generation]}
    document = {"kind": kind, "metadata": {"generation": 2}, "status": status}
    assert is_current(document)
    assert is_settled(document) is settled


def test_a_folder_is_all_its_files_and_a_dash_is_the_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("b.yaml", "a.json", "notes.txt"):
        (tmp_path / name).write_text(json.dumps({"kind": "RaftCluster", "metadata": {"name": name}}))
    (tmp_path / "inner.yaml").mkdir()
    monkeypatch.setattr("sys.stdin", io.StringIO("{metadata: {name: typed}}"))
    found = read_documents([tmp_path, Path("-")])
    assert [document["metadata"]["name"] for document in found] == ["a.json", "b.yaml", "typed"]


@pytest.mark.parametrize("version", ["apiVersion: pavane.dev/v1", "apiVersion: apps/v1", "spec: {}"])
def test_a_wrong_api_version_is_refused_before_anything_is_sent(tmp_path: Path, version: str) -> None:
    (tmp_path / "q.yaml").write_text(f"kind: RaftCluster\nmetadata: {{name: q}}\n{version}\n")
    refused = pavane("apply", "-f", "q.yaml", folder=tmp_path)
    assert (refused.returncode, refused.stdout) == (ExitCode.USAGE, "")
    assert "RaftCluster q has apiVersion" in refused.stderr
    assert "write pavane.dev/v1alpha1" in refused.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("aply",), "Did you mean 'apply'?"),
        (("raft", "memebrs"), "Did you mean 'members'?"),
        (("get", "rafft"), "unknown kind rafft; did you mean raft? Kinds: bk (Backup), compute (ComputeCluster), "),
        (("get", "unheard"), "unknown kind unheard; Kinds: bk (Backup), compute (ComputeCluster), "),
        (("why", "rafft/q"), "unknown kind rafft; did you mean raft?"),
        (("why", "quickstart"), "name the resource as KIND/NAME: quickstart alone does not say of which kind; "),
        (("why", "quickstart"), "raft/quickstart, swim/quickstart"),
        (("describe", "raft"), "name the resource as KIND/NAME, for example raft/quickstart"),
    ],
)
def test_who_misspells_a_kind_or_a_command_is_told_what_was_meant(
    tmp_path: Path, words: tuple[str, ...], says: str
) -> None:
    refused = pavane(*words, folder=tmp_path)
    assert refused.returncode == ExitCode.USAGE
    assert says in refused.stderr


def test_a_misspelt_kind_in_a_file_is_named_with_the_file(tmp_path: Path) -> None:
    (tmp_path / "q.yaml").write_text("{apiVersion: pavane.dev/v1alpha1, kind: RaftClutser, metadata: {name: q}}")
    refused = pavane("apply", "-f", "q.yaml", folder=tmp_path)
    assert refused.returncode == ExitCode.USAGE
    assert "q.yaml: q: unknown kind RaftClutser; did you mean RaftCluster?" in refused.stderr


def test_a_token_that_is_none_is_not_printed(tmp_path: Path) -> None:
    refused = pavane(
        "raft", "kv", "get", "q", "k", "--api", "http://127.0.0.1:9", "--token", "se\ncret", folder=tmp_path
    )
    assert refused.returncode == ExitCode.USAGE
    assert "the token holds characters" in refused.stderr
    assert "cret" not in refused.stderr


def test_without_a_cluster_the_error_says_what_to_do(tmp_path: Path) -> None:
    result = pavane("get", "raft", folder=tmp_path)
    assert result.returncode == ExitCode.ERROR
    assert "pavane up" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_stopped_local_cluster_is_called_so(tmp_path: Path) -> None:
    folder = tmp_path / ".pavane"
    folder.mkdir()
    user = {"name": "u", "user": {"token": "t"}}
    cluster = {"name": "c", "cluster": {"server": "https://127.0.0.1:9"}}
    context = {"name": "x", "context": {"cluster": "c", "user": "u"}}
    config = {"clusters": [cluster], "users": [user], "contexts": [context], "current-context": "x"}
    (folder / "kubeconfig").write_text(json.dumps(config))
    elsewhere = pavane("get", "raft", folder=tmp_path)
    assert "cannot connect: Connection refused" in elsewhere.stderr, "a kubeconfig alone is no local cluster"
    (folder / "lock").touch()
    for words in (("get", "raft"), ("raft", "kv", "get", "q", "k"), ("ps",), ("check",)):
        failed = pavane(*words, folder=tmp_path)
        assert failed.returncode == ExitCode.ERROR
        assert f"the local cluster of {folder} is stopped: start it with `pavane up`" in failed.stdout + failed.stderr


@pytest.mark.parametrize(
    "place",
    [
        "processes:pod",
        "raft_peer:peer",
        "raft_probe:probe",
        "swim_member:member",
        "swim_members:members",
        "swim_control:watch",
    ],
)
def test_pods_and_peers_never_load_the_platform(tmp_path: Path, place: str) -> None:
    code = (
        "import sys, pavane_cli.main; from pavane_cli import lazy, table;"
        f"lazy.Commands({{'': {{'x': table.Command('{place}')}}}})['x'];"
        "print(sorted({'kopf', 'kubernetes', 'fastapi', 'pavane_operator', 'pavane_local'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "content", [b"words", b"\xff\xfe\0", b"contexts: [7]\ncurrent-context: x\n", b"- 1\n", b"a: ["]
)
@pytest.mark.parametrize("words", [("get", "raft"), ("raft", "kv", "get", "q", "k")])
def test_what_is_no_kubeconfig_is_called_so(tmp_path: Path, content: bytes, words: tuple[str, ...]) -> None:
    (tmp_path / "file").write_bytes(content)
    failed = pavane(*words, "--kubeconfig", "file", folder=tmp_path)
    assert failed.returncode == ExitCode.ERROR
    assert "file is no kubeconfig: " in failed.stderr
    assert "Traceback" not in failed.stderr


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s")
    peers = ("--peers", "tcp://127.0.0.1:1", "--secret-file", "secret")
    result = pavane("raft", "kv", "import", *peers, "absent.jsonl", folder=tmp_path)
    assert (result.returncode, result.stderr) == (ExitCode.ERROR, "pavane: absent.jsonl: No such file or directory\n")


def test_a_member_that_does_not_run_here_is_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    for name in (None, "absent"):
        with pytest.raises(UserError, match="none of your members runs here") as caught:
            path_of(name, None)
        assert caught.value.code is ExitCode.NOT_FOUND


def test_the_nearest_local_cluster_is_found_from_below(tmp_path: Path) -> None:
    (tmp_path / ".pavane").mkdir()
    (tmp_path / ".pavane" / "kubeconfig").write_text("{}")
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    assert nearest_local(below) == (tmp_path / ".pavane" / "kubeconfig").resolve()


def test_references_are_kind_and_name() -> None:
    assert parse_reference("raft/q")[1] == "q"
    assert parse_reference("RaftCluster", "q")[1] == "q"
    assert parse_reference("raftclusters")[1] is None
    for wrong in ("pond/q", "raft"):
        with pytest.raises(UserError) as caught:
            required_reference(wrong)
        assert caught.value.code is ExitCode.USAGE
    with pytest.raises(UserError):
        parse_reference("raft/q", "p")


def test_a_plugin_of_kubectl_calls_itself_what_its_user_typed(tmp_path: Path) -> None:
    plugin = Path(sys.executable).with_name("kubectl-pavane")
    shown = subprocess.run(
        [plugin, "rollout", "--help"], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
    )
    assert "Usage: kubectl pavane rollout" in shown.stdout
    assert "Usage: pavane rollout" in pavane("rollout", "--help", folder=tmp_path).stdout


@pytest.mark.parametrize("command", [("get", "raft"), ("rollout", "status", "raft/q"), ("raft", "kv", "get", "q", "k")])
def test_options_before_a_command_count_as_its_own(tmp_path: Path, command: tuple[str, ...]) -> None:
    before = pavane("--kubeconfig", "first", *command, folder=tmp_path)
    assert before.returncode == ExitCode.ERROR
    assert "no kubeconfig at first" in before.stderr
    both = pavane("--kubeconfig", "first", *command, "--kubeconfig", "second", folder=tmp_path)
    assert "no kubeconfig at second" in both.stderr


def test_a_context_may_stand_before_the_command(tmp_path: Path) -> None:
    (tmp_path / "config").write_text(
        "{apiVersion: v1, kind: Config, clusters: [], users: [], contexts: [], current-context: ''}"
    )
    result = pavane("--kubeconfig", "config", "--context", "elsewhere", "get", "raft", folder=tmp_path)
    assert result.returncode == ExitCode.ERROR
    assert "elsewhere" in result.stderr


def test_options_before_a_command_that_has_none_of_them_are_refused(tmp_path: Path) -> None:
    result = pavane("-n", "team", "up", folder=tmp_path)
    assert result.returncode == ExitCode.USAGE
    assert "No such option: --namespace" in result.stderr


@pytest.mark.parametrize("wanted", [("rollout",), ("rollout", "--help"), ("get", "--help")])
def test_options_before_a_command_leave_its_help_alone(tmp_path: Path, wanted: tuple[str, ...]) -> None:
    shown = pavane("-n", "team", *wanted, folder=tmp_path)
    assert f"Usage: pavane {wanted[0]}" in shown.stdout + shown.stderr
    assert "No such option" not in shown.stdout + shown.stderr
