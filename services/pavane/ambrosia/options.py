"""Options of the executables as the programs around them write them (docs/specs/ambrosia.md 16.1-16.3)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

DEFAULT_LOG = "/AmbrosiaLogs/"
REGISTRY_VARIABLE = "PAVANE_AMBROSIA_REGISTRY"
TRIGGER_MB = 1000
PORT_MAX = 65535


class UsageError(Exception):
    """Arguments that cannot be meant; the text says which."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option: its long name, its short one, and whether a value follows."""

    name: str
    short: str
    flag: bool = False
    help: str = ""


COMMON = (
    Option("instanceName", "i", help="name of the immortal"),
    Option("receivePort", "rp", help="port for bytes from the application"),
    Option("sendPort", "sp", help="port for bytes to the application"),
    Option("log", "l", help="folder of the logs, with its separator at the end"),
    Option("registry", "registry", help="folder that the coordinators of a host share"),
    Option("help", "h", flag=True, help="show this"),
)
TRIGGER = Option("logTriggerSize", "lts", help="MB of log until the next checkpoint; 0: never")
COORDINATOR = (
    *COMMON,
    TRIGGER,
    Option("port", "p", help="port for other coordinators"),
    Option("logStorageType", "lst", help="files"),
    Option("IPAddr", "ip", help="address that other coordinators dial"),
    Option("host", "host", help="address on which the application is expected"),
    Option("generation", "g", help="a greater generation takes over from a lower one"),
    Option("readOnly", "ro", flag=True, help="follow the log without writing until SIGUSR1"),
    Option("activeActive", "aa", flag=True, help="while another process leads, follow it, and lead when it ends"),
    Option("replicaNum", "r", help="the same; a number of one's own among them"),
    Option("currentVersion", "cv", help="version that the application must have had; names the folder of its files"),
    Option("upgradeVersion", "uv", help="version that it has from now on"),
    Option("legacySockets", "legacySockets", flag=True, help="the application listens on the send port"),
    Option("currentSockets", "currentSockets", flag=True, help="the application dials both ports"),
    Option("detectMs", "detectMs", help="milliseconds in which the send port is dialled first"),
)
REGISTER = (
    *COMMON,
    TRIGGER,
    Option("createService", "cs", help="A, Y or N"),
    Option("pauseAtStart", "ps", flag=True),
    Option("currentVersion", "cv"),
    Option("upgradeVersion", "uv"),
)
DEBUG = (
    *COMMON,
    Option("checkpoint", "c", help="number of the checkpoint to begin with"),
    Option("currentVersion", "cv"),
    Option("testingUpgrade", "tu", flag=True, help="let new code handle the log"),
)


def parse(arguments: Sequence[str], options: Sequence[Option]) -> dict[str, str]:
    """Read ``--name=value``, ``--name:value``, ``-name value`` and ``/name=value``; flags have the value ``"1"``."""
    known = {form.lower(): option for option in options for form in (option.name, option.short)}
    found: dict[str, str] = {}
    left = list(arguments)
    while left:
        argument = left.pop(0)
        bare = argument.removeprefix("--") if argument.startswith("--") else argument[1:]
        cuts = [at for at in (bare.find("="), bare.find(":")) if at >= 0]
        name = bare[: min(cuts)] if cuts else bare
        option = known.get(name.lower()) if argument[:1] in ("-", "/") else None
        if option is None:
            raise UsageError(f"Invalid arguments: {argument}")
        value = bare[min(cuts) + 1 :] if cuts else ""
        if option.flag or value:
            found[option.name] = value or "1"
        elif left and not cuts:
            found[option.name] = left.pop(0)
        else:
            raise UsageError(f"Invalid arguments: {argument} needs a value")
    return found


def usage(program: str, options: Sequence[Option]) -> str:
    """Return the help; others look for the word ``Usage:``."""
    rows = [f"  -{option.short}, --{option.name}{'' if option.flag else '='}  {option.help}" for option in options]
    return "\n".join((f"Usage: {program} [OPTIONS]", "Options:", *rows))


def number(found: Mapping[str, str], name: str, default: int, *, low: int = 0, high: int = 1 << 40) -> int:
    """Return an option as a whole number; ``UsageError`` outside ``low`` … ``high``."""
    text = found.get(name)
    if text is None:
        return default
    try:
        value = int(text)
    except ValueError as error:
        raise UsageError(f"Invalid arguments: {name} is {text}, not a number") from error
    if not low <= value <= high:
        raise UsageError(f"Invalid arguments: {name} is {value}, not in {low} … {high}")
    return value


def port(found: Mapping[str, str], name: str, missing: str) -> int:
    """Return a port; ``UsageError`` with the words of the original when it is not given."""
    if name not in found:
        raise UsageError(missing)
    return number(found, name, 0, low=1, high=PORT_MAX)


def registry(found: Mapping[str, str], environment: Mapping[str, str]) -> Path:
    """Return the folder of the registry."""
    log = found.get("log", DEFAULT_LOG)
    return Path(found.get("registry") or environment.get(REGISTRY_VARIABLE) or f"{log}registry")
