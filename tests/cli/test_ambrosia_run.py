"""``pavane ambrosia run`` and ``call``: what is wrong is said in one line, and Ctrl-C ends an immortal in order."""

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from pavane_cli.failures import ExitCode

PROGRAM = """
from pavane.ambrosia import Immortal, method

class Account(Immortal):
    balance: int = 0

    @method
    def deposit(self, amount: int) -> int:
        self.balance += amount
        return self.balance

    @method
    async def wait(self) -> None:
        await self.sleep(3600)
"""
PAVANE = [sys.executable, "-m", "pavane_cli.main", "ambrosia"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "accounts.py").write_text(PROGRAM)
    (tmp_path / "torn.py").write_text("class Account(\n")
    (tmp_path / "broken.py").write_text("\nraise ValueError('no')\n")
    return tmp_path


def pavane(folder: Path, *words: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*PAVANE, *words],
        cwd=folder,
        env={**os.environ, "KUBECONFIG": str(folder / "none"), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.fixture
def alice(folder: Path) -> Iterator["subprocess.Popen[str]"]:
    """An immortal that is live, and the first process of its group, as a shell starts it."""
    process = subprocess.Popen(
        [*PAVANE, "run", "accounts:Account", "--name", "alice"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        process_group=0,
    )
    assert process.stdout is not None
    try:
        assert "alice is live" in process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("words", "environment", "said"),
    [
        (("accounts:Account", "--name", ""), {}, "'' is no name of an immortal"),
        (("accounts:Account", "--name", "a/b"), {}, "'a/b' is no name of an immortal"),
        (("accounts:Account", "--name", "a"), {"PAVANE_AMBROSIA": "here"}, "write host:receivePort,sendPort"),
        (("accounts:Account", "--name", "a", "--http", "127.0.0.1:web"), {}, "cannot listen at 127.0.0.1:web"),
        (("accounts:Account", "--name", "a", "--http", "127.0.0.1:99999"), {}, "cannot listen at 127.0.0.1:99999"),
        (("accounts:Account", "--name", "a", "--http", "192.0.2.1:80"), {}, "cannot listen at 192.0.2.1:80"),
        (("torn:Account", "--name", "a"), {}, "torn cannot be loaded: SyntaxError"),
        (("broken:Account", "--name", "a"), {}, "broken.py:2"),
    ],
)
def test_what_is_wrong_with_a_run_is_one_line(
    folder: Path, words: tuple[str, ...], environment: dict[str, str], said: str
) -> None:
    done = pavane(folder, "run", *words, **environment)
    assert (done.returncode, said in done.stderr) == (ExitCode.ERROR, True), done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_ctrl_c_ends_an_immortal_in_order(alice: "subprocess.Popen[str]", folder: Path) -> None:
    os.killpg(alice.pid, signal.SIGINT)  # as a terminal sends it: to all that the shell started
    said, _ = alice.communicate(timeout=60)
    assert (alice.returncode, said) == (0, "")
    assert pavane(folder, "replay", "accounts:Account", "nobody").returncode == ExitCode.NOT_FOUND


def test_a_call_that_cannot_be_answered_says_what_to_do(alice: "subprocess.Popen[str]", folder: Path) -> None:
    assert pavane(folder, "call", "alice", "deposit", "5").stdout == "5\n"
    for method in ("", "a/b", "total?x"):
        done = pavane(folder, "call", "alice", method)
        assert (done.returncode, "Traceback" in done.stderr) == (ExitCode.NOT_FOUND, False), done.stderr
    late = pavane(folder, "call", "alice", "wait", "--key", "k1", "--timeout", "0.5")
    assert (late.returncode, "ask again with --key k1" in late.stderr) == (ExitCode.TIME_OUT, True), late.stderr
    assert "start it" not in late.stderr
    absent = pavane(folder, "call", "bob", "deposit", "--timeout", "0.1")
    assert (absent.returncode, "start it" in absent.stderr) == (ExitCode.TIME_OUT, True), absent.stderr


def test_a_call_removed_from_an_open_flow_is_changed_code(folder: Path) -> None:
    """Of the checkpoints the one is left that holds the flow, so the replay begins with it."""
    program = """
        import asyncio
        from accounts import Account
        from pavane.ambrosia import serve

        async def main():
            async with serve(Account, name="alice") as handle:
                asyncio.create_task(handle.call(Account.wait))
                while not (files / "serverchkpt2").exists():
                    if await handle.call(Account.deposit, 1) > 1:
                        await handle.checkpoint()

        import pathlib
        files = pathlib.Path(".pavane/ambrosia/alice_0")
        asyncio.run(main())
    """
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    files = folder / ".pavane" / "ambrosia" / "alice_0"
    assert (files / "serverchkpt2").exists(), ran.stderr
    for each in files.glob("serverchkpt1"):
        each.unlink()
    assert pavane(folder, "replay", "accounts:Account", "alice").returncode == ExitCode.DONE
    (folder / "accounts.py").write_text(PROGRAM.replace("await self.sleep(3600)", "pass"))
    changed = pavane(folder, "replay", "accounts:Account", "alice")
    assert (changed.returncode, "expected: sleep 3600" in changed.stderr) == (9, True), changed.stderr
