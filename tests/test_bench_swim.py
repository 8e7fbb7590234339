from pathlib import Path

import pytest

from bench import swim
from bench.options import Options
from tests.requires import requires

SIZE = 5


@pytest.mark.long  # of the benchmark, not of the service: nothing shorter runs it
@pytest.mark.timeout(300)
async def test_a_group_is_measured_beside_one_of_memberlist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requires("go")
    short = {"SIZES": (SIZE,), "SETTLE_PER_MEMBER_S": 1, "IDLE_S": 2, "LOSSY_S": 2, "HEAVY_SETTLE_S": 1}
    for name, value in short.items():
        monkeypatch.setattr(swim, name, value)
    found = {measure.what: measure.value for measure in await swim.measure(tmp_path, Options(runs=1))}
    for who in ("", "memberlist: "):
        assert found[f"{SIZE}: {who}crash known by all"] > 1
        assert found[f"{SIZE}: {who}idle, datagrams per member and second"] > 1
    ours, theirs = (found[f"{SIZE}: {who}crash known by all"] for who in ("", "memberlist: "))
    assert found[f"{SIZE}: ours / memberlist: crash known by all"] == pytest.approx(ours / theirs)
