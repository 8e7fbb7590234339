"""What a watcher of the API may never see, whatever happens to the operator (docs/specs/operator.md 2.11)."""

from dataclasses import dataclass, field

from pavane_operator.kube.client import Change
from pavane_operator.kube.resources import SERVICES, STATEFUL_SETS, VOLUME_CLAIMS, Object, Resource
from pavane_operator.plan.model import GENERATION_LABEL, parse_number
from tests.operator.operator_cluster import state

GENERATIONS_WITH_PODS_MAX = 3
FOLLOWS = {
    "Idle": {"CreatingNext"},
    "CreatingNext": {"Initializing", "Aborting"},
    "Initializing": {"CatchingUp", "Promoting", "Aborting"},
    "CatchingUp": {"CaughtUp", "Promoting", "Aborting"},
    "CaughtUp": {"CatchingUp", "Promoting", "Aborting"},
    "Promoting": {"Baking", "Retiring", "Aborting"},
    "Baking": {"Promoting", "Retiring"},
    "Retiring": {"Idle"},
    "Aborting": {"Idle"},
}
"""States that may follow one another, in an attempt whose number of pods does not change."""


@dataclass
class Invariants:
    """Fed with every change of one resource and its objects; `broken` says in words what was violated."""

    broken: list[str] = field(default_factory=list)
    way_back: bool = False
    """The former generation was asked for: numbers may go back."""
    _deleting: bool = False
    _status: Object = field(default_factory=dict)
    _selected: int = 0
    _sets: dict[str, str] = field(default_factory=dict)
    _ever: dict[str, str] = field(default_factory=dict)

    def deletion_asked(self) -> None:
        """From now on everything may go."""
        self._deleting = True

    def seen(self, resource: Resource, change: Change) -> None:
        """One change, as a watch told it."""
        body = change.object
        if change.type == "BOOKMARK":
            return
        if resource == STATEFUL_SETS:
            self._stateful_set(body, gone=change.type == "DELETED")
        elif resource == VOLUME_CLAIMS:
            if change.type == "DELETED" and self._generation(body) == self._active:
                self._break("I5", f"volume {body['metadata']['name']} of the active generation was deleted")
        elif resource == SERVICES:
            if change.type != "DELETED":
                self._service(body)
        elif change.type != "DELETED":
            self._resource(body.get("status") or {})

    @property
    def _active(self) -> int:
        return int(self._status.get("activeGeneration") or 0)

    def _break(self, invariant: str, words: str) -> None:
        if not self._deleting:
            self.broken.append(f"{invariant}: {words}")

    @staticmethod
    def _generation(body: Object) -> int:
        return parse_number((body["metadata"].get("labels") or {}).get(GENERATION_LABEL)) or 0

    def _stateful_set(self, body: Object, *, gone: bool) -> None:
        name, uid = body["metadata"]["name"], body["metadata"]["uid"]
        if gone:
            self._sets.pop(name, None)
            if self._generation(body) == self._active:
                self._break("I4", f"StatefulSet {name} of the active generation was deleted")
            return
        if self._ever.setdefault(name, uid) != uid:
            self._break("I3", f"StatefulSet {name} was made a second time")
        self._sets[name] = uid
        if len(self._sets) > GENERATIONS_WITH_PODS_MAX:
            self._break("derived", f"generations beside each other: {sorted(self._sets)}")

    def _service(self, body: Object) -> None:
        if GENERATION_LABEL in (body["metadata"].get("labels") or {}):
            return  # the headless one of a generation
        selected = parse_number((body["spec"].get("selector") or {}).get(GENERATION_LABEL)) or 0
        if selected < self._selected and not self.way_back:
            self._break("I1", f"the public Service went back from generation {self._selected} to {selected}")
        self._selected = selected

    def _resource(self, status: Object) -> None:
        for number in ("activeGeneration", "lastGeneration"):
            before, after = self._status.get(number) or 0, status.get(number) or 0
            if after < before and not (self.way_back and number == "activeGeneration"):
                self._break("I3", f"{number} went back from {before} to {after}")
        before, after = state(self._status) or "Idle", state(status) or "Idle"
        if before != after and after not in FOLLOWS[before]:
            self._break("machine", f"{before} was followed by {after}")
        if (self._status.get("rollout") or {}).get("step") and before == "Promoting" and after == "Aborting":
            steps = self._status["rollout"]["step"]["name"]
            if steps not in ("AllowWrites",):
                self._break("C0", f"aborted after {steps}")
        self._status = status
