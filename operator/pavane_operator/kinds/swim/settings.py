"""What a member would refuse of the settings and seeds that a user gives."""

from __future__ import annotations

from pavane.swim.config import Config, split_seed
from pavane.swim.errors import ConfigError
from pavane_operator.crds.swimgroup import SwimGroupSpec

TUNABLES = ("max_datagram_bytes",)
"""Settings of docs/specs/swim.md 17 with a default that is right nearly everywhere; the rest the operator sets."""


def config_problem(spec: SwimGroupSpec) -> str | None:
    """Why a member would refuse these settings, in words for the user; None = it would not."""
    try:
        for seed in spec.seeds:
            split_seed(seed)
    except ConfigError as error:
        return f"spec.seeds: {error}"
    for key, value in spec.config.items():
        if key not in TUNABLES:
            return f"spec.config.{key}: no such setting; there are {', '.join(TUNABLES)}"
        if isinstance(value, bool) or not isinstance(value, int):
            return f"spec.config.{key}: {value!r} is not a whole number"
    try:
        Config(group=spec.group or "", **spec.config).validate()  # type: ignore[arg-type]
    except ConfigError as error:
        return f"spec.config, spec.group: {error}"
    return None
