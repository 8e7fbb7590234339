"""What a newcomer sees first."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.targets import Capability

PLATFORM = Path(__file__).parents[1] / "examples" / "platform.yaml"
DEMO_S = 600.0


@pytest.mark.needs(Capability.EMBEDDED)
@pytest.mark.timeout(DEMO_S + 60)
def test_the_demo_kills_and_rolls_out_all_and_proves_that_nothing_was_lost(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pavane_cli.main", "demo", str(PLATFORM), "--once"]
    demo = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        shown, said = demo.communicate(timeout=DEMO_S)
    except subprocess.TimeoutExpired:
        demo.terminate()  # it stops the cluster as well
        shown, said = demo.communicate()
    assert (demo.returncode, said) == (0, "Stopping …\n"), shown[-2000:] + said
    rows = {line.split()[0]: line.split()[1:5] for line in shown.splitlines() if re.match(r"\w+/[\w,]+ +\d", line)}
    shown_without_views = "Without SQL views: " in shown  # where memory is short
    views = set() if shown_without_views else {"compute/books"}
    assert rows.keys() == {"raft/meta", "swim/members", "waltz/ledger", "coord/alice,bob"} | views
    for done, _, lost, doubled in rows.values():
        assert int(done) > 0
        assert (lost, doubled) == ("0", "0")
    assert shown.count(" was killed (SIGKILL) and comes back.") == len(rows)
    money = (
        "waltz/ledger coord/alice,bob: 2000 in all accounts before, 2000 after; the log has the same in each account"
    )
    assert money in shown
    assert "raft/meta: 0 writes by a generation that might not write" in shown
    ticks = re.search(
        r"the balances added up to 2000 at (\d+) of (\d+) ticks; at the last one they are those of", shown
    )
    assert shown_without_views or (ticks is not None and ticks[1] == ticks[2])
    assert "PROVED: nothing was lost, nothing doubled." in shown
