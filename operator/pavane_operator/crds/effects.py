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
    return f"this starts a new generation of {pods}"


def _changed(before: dict[str, Any], after: dict[str, Any]) -> str:
    if before["spec"] != after["spec"]:
        return "this changes it in place; no generation starts"
    kept = [{name: each["metadata"].get(name) for name in ("labels", "annotations")} for each in (before, after)]
    return "unchanged" if kept[0] == kept[1] else "this changes its metadata alone"
