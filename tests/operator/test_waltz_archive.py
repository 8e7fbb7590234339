"""The operator tells of an archive that takes nothing, as the servers of the log say on their ops ports."""

from typing import Any

import httpx2
import pytest

from pavane_operator.kinds.waltz import promotion
from pavane_operator.kinds.waltz.archives import Owned
from pavane_operator.kinds.waltz.facts import facts
from pavane_operator.plan.model import Observed, Pod
from tests.operator.test_render_raft import UID
from tests.operator.test_render_waltz import registry, resource


def test_an_archive_that_takes_nothing_is_told_after_a_minute() -> None:
    def found(*held: Any) -> Any:
        owned = Owned.model_validate({"partitions": [{"partition": at, "archive": one} for at, one in enumerate(held)]})
        look = registry(numbers={3: 1, 4: 1})
        told = facts(resource(1, None, partitions=2), look, owned={"q-1": Owned(partitions=[]), "q-2": owned})
        return next((one for one in told.conditions if one.type == "ArchiveBehind"), None), told.warnings

    def away(seconds: float, size: int, fault: str = "403 Forbidden") -> dict[str, Any]:
        return {"fault": fault, "faulty_s": seconds, "faulty_ms": 1_700_000_000_999, "waiting_bytes": size, "end": 7}

    assert found(None, None) == (None, ())
    for well in (away(0, 0, ""), away(59, 5 << 20)):
        condition, events = found(well, well)
        assert (condition.status, condition.reason, events) == (False, "AllArchived", ())
    condition, (event,) = found(away(60, 5 << 20), away(0, 0, ""), away(60, 6 << 20))
    text = "partition 0, 2 since 2023-11-14T22:13:20+00:00, 8 MiB or more wait: 403 Forbidden"
    assert (condition.status, condition.reason) == (True, "ArchiveBehind")
    assert condition.message == f"the archive has taken nothing of {text}"
    assert (event.reason, event.message) == ("ArchiveBehind", condition.message)
    condition, _ = found(*[away(60, 0)] * 10)
    assert "partition 0, 1, 2, 3, 4, 5, 6, 7 and 2 more since" in condition.message
    assert "less than 1 MiB wait" in condition.message


async def test_servers_are_asked_of_the_archive_if_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"fault": "403 Forbidden", "faulty_s": 90.5, "faulty_ms": 1_700_000_000_999, "waiting_bytes": 7}
    answers = {
        "10.0.0.1": {"partitions": [{"partition": 1, "archive": told}]},
        "10.0.0.2": {"partitions": 7},
    }

    def answer(request: httpx2.Request) -> httpx2.Response:
        assert request.url.path == "/partitions"
        return httpx2.Response(200, json=answers[request.url.host])

    monkeypatch.setattr(
        promotion, "pods_http", lambda: httpx2.AsyncClient(transport=httpx2.MockTransport(answer), trust_env=False)
    )
    pods = tuple(Pod(f"ledger-{host}", host, "1", 1, address=host) for host in answers)
    for archive, expected in ({"url": "s3://logs/x"}, [True]), (None, []):
        asked = promotion.WaltzPromotion("data", "ledger", UID)
        spec = {} if archive is None else {"archive": archive}
        found = await asked.observe(resource(1, None, **spec), Observed(fresh=True, pods=pods))
        await asked.close()
        assert [one.status for one in found.conditions if one.type == "ArchiveBehind"] == expected
