"""No command ends in a traceback, whatever is missing; a fault of ours is one line, and a reader that goes is none."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from pavane_cli.failures import ExitCode

RUNS_S = 2  # if no command ends for so long, those that still run wait for something: they are stopped
ABSENT = ("kopf", "fastapi", "cryptography", "starlette", "grpc", "duckdb", "pyarrow", "sqlglot", "jsonschema", "celpy")
"""What a plain installation has not: one package of each extra that a command needs."""
UNWRITABLE = "/sys"
"""A folder in which not even root makes a file."""

DRIVER = """
import ctypes, os, shlex, signal, sys
from pathlib import Path

absent, said, runs_s = sys.argv[1].split(","), Path(sys.argv[2]), float(sys.argv[3])
sys.modules |= dict.fromkeys(filter(None, absent))
import typer
from pavane_cli import main, table

group = typer.main.get_command(main.app)
rows = {words: row for section in table.COMMANDS.values() for words, row in section.items()}
rows = {words: row for words, row in rows.items() if getattr(row, "example", None) is not None}
for words in rows:
    command, context = group, group.context_class(group)
    for word in words.split():  # imported once, for all children
        command = command.get_command(context, word)

PR_SET_PDEATHSIG = 1
libc = ctypes.CDLL(None)
children = {}
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
for words, row in rows.items():
    child = os.fork()
    if child:
        children[words] = child
        continue
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # a server that outlived us would keep its port
    os.setsid()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    for number, name in ((0, "in"), (1, "out"), (2, "err")):
        os.dup2(os.open(said / f"{words}.{name}", os.O_CREAT | os.O_RDWR | os.O_APPEND), number)
    sys.argv = ["pavane", *words.split(), *shlex.split(row.example)]
    code = 99  # neither ended nor exited
    try:
        main.main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
    except BaseException:
        import traceback
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)

codes = {}
while len(codes) < len(children):
    if signal.sigtimedwait({signal.SIGCHLD}, runs_s) is None:
        for words in children.keys() - codes.keys():
            os.killpg(children[words], signal.SIGKILL)
    for words in children.keys() - codes.keys():
        found, status = os.waitpid(children[words], os.WNOHANG)
        if found:
            codes[words] = os.waitstatus_to_exitcode(status)
for words, code in codes.items():
    (said / f"{words}.code").write_text(str(code))
"""


def prepared(state: str, folder: Path) -> tuple[Path, dict[str, str], tuple[str, ...]]:
    """The working folder, the environment and the absent packages of a state."""
    here, environment = folder, {"HOME": str(folder), "XDG_RUNTIME_DIR": str(folder), "TMPDIR": str(folder)}
    for name in ("peer1", "js-peer", "backup", "storage", "keys"):
        (folder / name).mkdir()
    (folder / "secret").write_text("secret")
    (folder / "revenue.sql").write_text("CREATE TABLE")
    (folder / "keys.jsonl").touch()
    cluster = {"name": "c", "cluster": {"server": "https://127.0.0.1:9"}}
    named = {"name": "x", "context": {"cluster": "c", "user": "u"}}
    config = {"clusters": [cluster], "users": [{"name": "u", "user": {"token": "t"}}], "contexts": [named]}
    text = yaml.safe_dump({**config, "current-context": "x"})
    match state:
        case "stopped":
            (folder / ".pavane").mkdir(mode=0o700)
            (folder / ".pavane" / "kubeconfig").write_text(text)
            (folder / ".pavane" / "lock").touch()
        case "no rights":
            here = Path(UNWRITABLE)
            environment = dict.fromkeys(environment, UNWRITABLE)
        case "broken kubeconfig":
            (folder / "config").write_bytes(b"\xff words")
            environment["KUBECONFIG"] = str(folder / "config")
        case "API away":
            (folder / "config").write_text(text)
            environment |= {"KUBECONFIG": str(folder / "config"), "PAVANE_API_URL": "http://127.0.0.1:9"}
    return here, environment, ABSENT if state == "no extra" else ()


def outcomes(state: str, folder: Path) -> Mapping[str, tuple[int, str]]:
    """Run the example of every command: exit code and what it says on standard error."""
    here, environment, absent = prepared(state, folder)
    said = folder / "said"
    said.mkdir()
    subprocess.run(
        [sys.executable, "-P", "-c", DRIVER, ",".join(absent), str(said), str(RUNS_S)],
        cwd=here, env={**environment, "PATH": os.environ["PATH"]}, check=True, timeout=300,
    )  # fmt: skip
    return {
        each.stem: (int(each.read_text()), each.with_suffix(".err").read_text(errors="replace"))
        for each in said.glob("*.code")
    }


@pytest.mark.parametrize("state", ["no cluster", "stopped", "no rights", "broken kubeconfig", "API away", "no extra"])
def test_no_command_ends_in_a_traceback(tmp_path: Path, state: str) -> None:
    found = outcomes(state, tmp_path)
    assert len(found) > 80
    wrong = {
        words: (code, text)
        for words, (code, text) in found.items()
        if code in {99, ExitCode.FAULT} or "Traceback" in text or "internal error" in text
    }
    assert wrong == {}


RUN = """
import sys, types
from pavane_cli import main, table

made = types.ModuleType("pavane_cli.commands.made")
{function}
made.made = made_command
sys.modules[made.__name__] = made
table.COMMANDS[table.{section}]["made"] = table.Command("made:made")
sys.argv = ["pavane", "made"]
main.main()
"""
FAULTY = "def made_command():\n    raise RuntimeError('boom')"
LONG = """
def made_command():
    from pavane_cli import output
    for number in range(100_000):
        {say}
"""


def program(function: str, section: str = "LOCAL") -> list[str]:
    return [sys.executable, "-c", RUN.format(function=function, section=section)]


def test_a_fault_is_one_line_that_names_the_file_of_its_trace(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    ended = subprocess.run(program(FAULTY), env=environment, capture_output=True, text=True, check=False, timeout=60)
    [kept] = tmp_path.glob("pavane-*.trace")
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (ExitCode.FAULT, "", 1)
    assert "RuntimeError: boom" in ended.stderr
    assert str(kept) in ended.stderr
    assert "Traceback" in kept.read_text()
    assert kept.stat().st_mode & 0o077 == 0


def test_where_no_file_can_be_made_a_fault_is_shown_whole(tmp_path: Path) -> None:
    code = f"import tempfile\ntempfile.tempdir = {UNWRITABLE!r}\n{FAULTY}"
    ended = subprocess.run(program(code), capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == ExitCode.FAULT
    assert "Traceback" in ended.stderr
    assert "pavane: " in ended.stderr.splitlines()[-1]


def test_a_container_tells_its_fault_in_its_log(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = program(FAULTY, "CONTAINERS")
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert "Traceback" in ended.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("say", ["output.say(str(number))", "sys.stdout.write('x')"])
def test_a_reader_that_has_seen_enough_is_no_error(say: str) -> None:
    with subprocess.Popen(
        program(LONG.format(say=say)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        assert writer.stderr is not None
        writer.stdout.read(1)
        writer.stdout.close()
        assert (writer.stderr.read(), writer.wait(60)) == ("", ExitCode.DONE)


@pytest.mark.parametrize("say", ["output.say(str(number))", "sys.stdout.write('x') if number < 9 else None"])
def test_an_output_that_is_full_is_one_line(say: str) -> None:
    with Path("/dev/full").open("w") as full:
        command = program(LONG.format(say=say))
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    assert (ended.returncode, ended.stderr) == (ExitCode.ERROR, "pavane: output: No space left on device\n")


def test_a_connection_that_breaks_is_still_an_error() -> None:
    code = "def made_command():\n    raise BrokenPipeError(32, 'Broken pipe')"
    ended = subprocess.run(program(code), capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == ExitCode.FAULT
    assert json.dumps("Broken pipe")[1:-1] in ended.stderr
