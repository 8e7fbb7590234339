"""Where the end-to-end tests run: one interface, one provider per kind of cluster (docs/specs/operator.md 7.4).

`E2E_TARGET` chooses `local` (default), `apiserver`, `kind` or `kubeconfig`.
"""

import importlib
import os
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType

from e2e.targets.base import Capability, Target

NAMES = ("local", "apiserver", "kind", "kubeconfig")
CHOSEN = os.environ.get("E2E_TARGET", NAMES[0])

__all__ = ["CHOSEN", "Capability", "Target", "capabilities", "running"]


def running(folder: Path) -> AbstractContextManager[Target]:
    """Run the chosen target, with the platform on it and ready, in ``folder``; skips where a tool is missing."""
    provided: AbstractContextManager[Target] = _provider().running(folder)
    return provided


def capabilities() -> frozenset[Capability]:
    """What the chosen target can do; known before it runs."""
    known: frozenset[Capability] = _provider().CAPABILITIES
    return known


def _provider() -> ModuleType:
    if CHOSEN not in NAMES:
        raise ValueError(f"E2E_TARGET={CHOSEN}: there is {', '.join(NAMES)}")
    return importlib.import_module(f"e2e.targets.{CHOSEN}")
