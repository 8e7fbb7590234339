"""What a change of a resource does, in words, before it is made."""

from typing import Any

from pavane_operator.crds.common import CommonSpec, rollout_id
from pavane_operator.crds.definitions import spec_model


def effect(kind: str, before: dict[str, Any] | None, after: dict[str, Any]) -> str:
    """What becomes of a resource that is changed from `before` (None: it is made) to `after`, both with defaults."""
    model = spec_model(kind)
    new = model.model_validate(after["spec"])
    if not isinstance(new, CommonSpec):
        return "this makes it" if before is None else _changed(before, after)
    count = getattr(new, "replicas", None) or getattr(getattr(new, "servers", None), "replicas", 1)
    pods = f"{count} pod" + ("s" if count != 1 else "")
    if before is None:
        return f"this makes it, with a first generation of {pods}"
    old = model.model_validate(before["spec"])
    assert isinstance(old, CommonSpec)  # noqa: S101 - as the new one
    status = before.get("status") or {}
    if rollout_id(kind, old.settled(status)) == rollout_id(kind, new.settled(status)):
        return _changed(before, after)
    return _of_generation(kind, new.settled(status), status) or f"this starts a new generation of {pods}"


def _of_generation(kind: str, spec: CommonSpec, status: dict[str, Any]) -> str:
    """What becomes of the generation that is of this spec already; empty if there is none, and a new one starts."""
    ids = {rollout_id(kind, spec), rollout_id(kind, spec, as_written=True)}
    known = {each["role"]: each["number"] for each in status.get("generations") or () if each["id"] in ids}
    told = {each["type"]: each["status"] for each in status.get("conditions") or ()}
    if "Active" in known:
        return f"generation {known['Active']}, which serves, is of this spec already; no generation starts"
    if "Standby" in known and told.get("CanSwitchBack") == "True":
        return f"generation {known['Standby']}, which follows, takes over again by one hand-over; no generation starts"
    return ""


def _changed(before: dict[str, Any], after: dict[str, Any]) -> str:
    if before["spec"] != after["spec"]:
        return "this changes it in place; no generation starts"
    kept = [{name: each["metadata"].get(name) for name in ("labels", "annotations")} for each in (before, after)]
    return "unchanged" if kept[0] == kept[1] else "this changes its metadata alone"
