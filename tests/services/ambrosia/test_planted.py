"""The model finds what goes wrong without the rules of docs/specs/ambrosia.md 9, 10 and 14."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from pavane.ambrosia.core.links import Links
from pavane.ambrosia.core.pipeline import Pipeline
from pavane.ambrosia.effects import EndCheckpoint, Step, Storage, StoreMeta
from pavane.ambrosia.state import Output
from pavane.ambrosia.storage import FileStore, LogReader
from pavane.ambrosia.tenure import Tenure
from pavane.wal.files import Folder
from tests.services.ambrosia.model import Model

SEEDS = 60
STEPS = 1500

pytestmark = pytest.mark.long  # the simulations themselves play in every run


def n2(patch: pytest.MonkeyPatch) -> None:
    """Never move the numbers to what the peer counts."""
    patch.setattr(Output, "_shift", lambda self, difference: None)


def n8(patch: pytest.MonkeyPatch) -> None:
    """Ask for what is not durable yet, although it is in the pending record."""
    real = Links.begin

    def begin(self: Links, number: int) -> None:
        inputs, self._pipeline.inputs = self._pipeline.inputs, self._pipeline.durable
        real(self, number)
        self._pipeline.inputs = inputs

    patch.setattr(Links, "begin", begin)


def n11(patch: pytest.MonkeyPatch) -> None:
    """Let the checkpoint of a writer that was overtaken become visible."""
    real = FileStore.carry_out

    def carry_out(self: FileStore, effect: Storage) -> None:
        match effect:
            case EndCheckpoint():
                self._change(effect)
            case StoreMeta(meta, Step.CHECKPOINT):
                row = self._registry.load(self._instance)
                shown = replace(row.meta, last_checkpoint=meta.last_checkpoint)
                self._row = self._registry.store(self._instance, replace(row, meta=shown), seen=row.version)
            case StoreMeta():
                self._row = self._registry.load(self._instance)
                real(self, effect)
            case _:
                real(self, effect)

    patch.setattr(FileStore, "carry_out", carry_out)


def ten(patch: pytest.MonkeyPatch) -> None:
    """Acknowledge what is not durable."""
    real = Pipeline.seal

    def seal(self: Pipeline) -> None:
        real(self)
        self.durable = dict(self.inputs)

    patch.setattr(Pipeline, "seal", seal)


def acknowledge_when_overtaken(patch: pytest.MonkeyPatch) -> None:
    """Acknowledge and deliver what was synced without a look whether another process took over meanwhile."""
    patch.setattr(Tenure, "check", lambda self: None)


def read_beyond_the_end(patch: pytest.MonkeyPatch) -> None:
    """Read a log beyond what counts of it: its writer stood still and went on."""
    real = LogReader.__init__

    def __init__(self: LogReader, folder: Folder, number: int) -> None:
        real(self, folder, number)
        self._end = None

    patch.setattr(LogReader, "__init__", __init__)


@pytest.mark.parametrize("rule", [n2, n8, n11, ten, acknowledge_when_overtaken, read_beyond_the_end])
def test_a_rule_taken_out_is_found(rule: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    rule(monkeypatch)
    for seed in range(SEEDS):
        model = Model(seed)
        try:
            model.chaos(STEPS)
            model.settle(6000)
        except Exception:
            return
    raise AssertionError("nobody noticed")
