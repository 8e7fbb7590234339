"""An engine of which a test sees every step, and may hold it up or let it fail."""

from collections.abc import Callable, Mapping

import pyarrow as pa

from pavane.dataflow.plain import PlainEngine
from pavane.dataflow.ports import Binding, Flow, Script, SqlView, State


class Hooked(PlainEngine):
    """DuckDB; `around` is asked to make each step of each view."""

    def open(self, script: Script) -> State:
        return _State(super().open(script), self)

    def around(self, step: Callable[[], pa.Table], inputs: Mapping[str, pa.Table]) -> pa.Table:
        """Make a step over these inputs."""
        raise NotImplementedError


class _State:
    def __init__(self, state: State, engine: Hooked) -> None:
        self._state = state
        self._engine = engine

    def flow(self, view: SqlView) -> Flow:
        return _Flow(self._state.flow(view), self._engine)

    @property
    def due(self) -> bool:
        return self._state.due

    def checkpoint(self, at: Mapping[str, Binding]) -> None:
        self._state.checkpoint(at)

    def close(self) -> None:
        self._state.close()


class _Flow:
    def __init__(self, flow: Flow, engine: Hooked) -> None:
        self._flow = flow
        self._engine = engine

    @property
    def at(self) -> Binding | None:
        return self._flow.at

    def step(self, inputs: Mapping[str, pa.Table], upper: int, *, more: bool = False) -> pa.Table:
        return self._engine.around(lambda: self._flow.step(inputs, upper, more=more), inputs)

    @property
    def due_ms(self) -> int | None:
        return self._flow.due_ms

    def contents(self, tick: int) -> pa.Table:
        return self._flow.contents(tick)

    def forget(self) -> None:
        self._flow.forget()
