"""Environment and config file of a SwimGroup's member → its settings (docs/specs/operator.md 4.2, swim.md 17)."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

from pavane.pods.settings import PodSettings, read_yaml
from pavane.runtime.settings import SettingsError
from pavane.swim.config import PROFILES, SEEDS_MAX, Config, Kin, Profile, id_of_name, split_seed
from pavane.swim.errors import ConfigError
from pavane.swim.wire.values import Address

SWIM_PORT = 7946
PODS_MAX = 1000  # of one generation, as the resource allows
GENERATIONS_MAX = 64  # whose ids are kept: more do not have pods at once, and each takes 1000 hashes
_IN_FILE = frozenset({"group", "profile", "capacity", "max_datagram_bytes", "seal", "seeds"})
_LIVE = frozenset({"profile", "seeds"})


class SwimSettings(PodSettings):
    """Env of a member."""

    swim_active: Path
    """File with the number of the active generation, which the operator changes."""
    swim_keys_file: Path | None = None
    swim_psk_file: Path | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class SwimPodConfig:
    """What a member needs to join: ``seeds`` are ``host:port``."""

    member: Config
    seeds: tuple[str, ...]


def load(settings: SwimSettings) -> SwimPodConfig:
    """Read the config file. Raises ``SettingsError`` that names the file, the key and what is wrong."""
    values = read_yaml(settings.config)
    try:
        _only(values, _IN_FILE)
        live = live_settings({key: values[key] for key in _LIVE & values.keys()})
        member = Config(
            id=id_of_name(f"{settings.pod_namespace}/{settings.pod_name}"),
            address=Address.of(settings.pod_ip, SWIM_PORT),
            group=str(values.get("group", "")),
            capacity=_whole(values, "capacity", 1024),
            max_datagram_bytes=_whole(values, "max_datagram_bytes", 1400),
            profile=live.profile or PROFILES["lan"],
            rollout=settings.generation,
            kin=_kin(settings.pod_namespace, settings.pod_name),
        )
        member.validate()
        if values.get("seal", False) and settings.swim_keys_file is None:
            raise ConfigError("seal needs keys: PAVANE_SWIM_KEYS_FILE names none")
    except (ConfigError, ValueError) as error:
        raise SettingsError(f"{settings.config}: {error}") from error
    # Valid with the keys, which are read when the member starts.
    return SwimPodConfig(dataclasses.replace(member, seal=bool(values.get("seal", False))), live.seeds or ())


@dataclasses.dataclass(frozen=True, slots=True)
class Live:
    """Settings that may change while the member runs; ``None`` = not given."""

    profile: Profile | None
    seeds: tuple[str, ...] | None


def live_settings(values: dict[str, Any]) -> Live:
    """Read them; raises ``ValueError`` that names the key and what is wrong."""
    _only(values, _LIVE)
    profile, seeds = values.get("profile"), values.get("seeds")
    if profile is not None and profile not in PROFILES:
        raise ValueError(f"profile: {profile!r} is none of {', '.join(PROFILES)}")
    if seeds is not None and not (
        isinstance(seeds, list) and len(seeds) <= SEEDS_MAX and all(isinstance(seed, str) for seed in seeds)
    ):
        raise ValueError(f"seeds: a list of at most {SEEDS_MAX} times host:port is needed")
    for seed in seeds or ():
        try:
            split_seed(seed)
        except ConfigError as error:
            raise ValueError(str(error)) from error
    return Live(None if profile is None else PROFILES[profile], None if seeds is None else tuple(seeds))


def active_generation(path: Path) -> int | None:
    """Return the number in the file, ``None`` while there is none."""
    try:
        text = path.read_text(encoding="utf-8").strip()
    except OSError:
        return None
    return int(text) if text.isascii() and text.isdecimal() else None


def _kin(namespace: str, pod: str) -> Kin:
    """Return what says whether a member is a pod of the resource that ``pod`` belongs to, of the given generation.

    Other resources may share the group; the numbers of their generations say nothing about ours. Every stage that is
    heard asks it.
    """
    stateful_sets = f"{namespace}/{pod.rpartition('-g')[0]}-g"

    @functools.lru_cache(maxsize=GENERATIONS_MAX)
    def ids(generation: int) -> frozenset[int]:
        return frozenset(id_of_name(f"{stateful_sets}{generation}-{ordinal}") for ordinal in range(PODS_MAX))

    return lambda id_, generation: id_ in ids(generation)


def _only(values: dict[str, Any], known: frozenset[str]) -> None:
    unknown = sorted(set(values) - known)
    if unknown:
        raise ValueError(f"unknown key {', '.join(unknown)}; known are {', '.join(sorted(known))}")


def _whole(values: dict[str, Any], key: str, default: int) -> int:
    value = values.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{key}: {value!r} is not a whole number")
    return value
