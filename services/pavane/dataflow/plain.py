"""The engine without Spark: DuckDB in this process (docs/specs/compute.md 16.3)."""

from __future__ import annotations

from pavane.dataflow.duckstate import DuckState, Files
from pavane.dataflow.ports import Script, State


class PlainEngine:
    """Keeps the state of views in `files`. Blocks; not thread-safe."""

    def __init__(self, files: Files | None = None) -> None:
        self._files = files if files is not None else Files()
        self._states: list[DuckState] = []

    def open(self, script: Script) -> State:
        """See `Engine`."""
        state = DuckState(script, self._files)
        self._states.append(state)
        return state

    def close(self) -> None:
        """Let go of memory and files."""
        for state in self._states:
            state.close()
