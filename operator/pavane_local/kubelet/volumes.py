"""Volumes as folders (docs/specs/operator.md 6.8.6)."""

import base64
import os
import secrets
import shutil
from pathlib import Path
from typing import Any

MODE_DEFAULT = 0o644

File = tuple[bytes, int]  # content, mode


class MissingReference(Exception):
    """A ConfigMap, a Secret or a key that the pod needs is not there (yet)."""


def require(kind: str, name: str, found: dict[str, Any] | None) -> dict[str, Any]:
    """The object that was found. Raises MissingReference when there is none."""
    if found is None:
        raise MissingReference(f'{kind} "{name}" not found')
    return found


def data(kind: str, name: str, found: dict[str, Any] | None) -> dict[str, bytes]:
    """The content of a ConfigMap or Secret by key. Raises MissingReference when there is none."""
    found = require(kind, name, found)
    if kind == "Secret":
        return {key: base64.b64decode(value) for key, value in (found.get("data") or {}).items()}
    plain = {key: value.encode() for key, value in (found.get("data") or {}).items()}
    return plain | {key: base64.b64decode(value) for key, value in (found.get("binaryData") or {}).items()}


def selected(source: dict[str, Any], content: dict[str, bytes]) -> dict[str, File]:
    """The files of a configMap or secret volume: all keys, or its `items`. Raises MissingReference."""
    mode = source.get("defaultMode", MODE_DEFAULT)
    if "items" not in source:
        return {key: (value, mode) for key, value in content.items()}
    files = {}
    for item in source["items"]:
        if item["key"] in content:
            files[item["path"]] = (content[item["key"]], item.get("mode", mode))
        elif not source.get("optional"):
            raise MissingReference(f'key "{item["key"]}" not found')
    return files


def field(pod: dict[str, Any], path: str) -> str:
    """The value of a downward API `fieldPath`, for instance `metadata.name` or `metadata.labels['app']`."""
    for prefix in ("metadata.labels", "metadata.annotations"):
        found: dict[str, str] = pod["metadata"].get(prefix.removeprefix("metadata."), {})
        if path == prefix:
            return "".join(f'{key}="{value}"\n' for key, value in sorted(found.items()))
        if path.startswith(f"{prefix}['"):
            return str(found.get(path[len(prefix) + 2 : -2], ""))
    if path == "status.podIPs":
        path = "status.podIP"
    value: Any = pod
    for part in path.split("."):
        value = value.get(part, "")
    return str(value)


def publish(folder: Path, files: dict[str, File]) -> None:
    """Make `folder` show exactly `files` (by relative path), all at once: `..data` is swapped."""
    current = folder / "..data"
    if current.exists() and _content(current.resolve()) == files:
        return
    fresh = folder / f"..{secrets.token_hex(4)}"
    targets = {inside(fresh, name): file for name, file in files.items()}
    fresh.mkdir(parents=True)
    for target, (content, mode) in targets.items():
        target.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(target, os.O_CREAT | os.O_WRONLY, 0o600), "wb") as writer:
            writer.write(content)
        target.chmod(mode)
    former = current.resolve() if current.exists() else None
    _link(current, fresh.name)
    tops = {name.split("/")[0] for name in files}
    for name in tops:
        _link(folder / name, f"..data/{name}")
    for entry in folder.iterdir():
        if entry.is_symlink() and entry.name != "..data" and entry.name not in tops:
            entry.unlink()
    if former is not None:
        shutil.rmtree(former)


def inside(folder: Path, path: str) -> Path:
    """`path` below `folder`. Raises MissingReference if it leads out."""
    found = Path(os.path.normpath(folder / path.lstrip("/")))
    if not found.is_relative_to(folder):
        raise MissingReference(f'the path "{path}" leaves its volume or container')
    return found


def mount(root: Path, path: str, target: Path) -> None:
    """Let `path` below a container's root folder lead to `target`, a folder unless it is there already."""
    link = inside(root, path)
    link.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists():
        target.mkdir(parents=True)
    _link(link, str(target))


def rewritten(text: str, root: Path, paths: list[str]) -> str:
    """`text` with the root folder in front, if it begins with one of the mount paths."""
    hit = any(text == path or text.startswith(path.rstrip("/") + "/") for path in paths)
    return f"{root}{text}" if hit else text


def _content(folder: Path) -> dict[str, File]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mode & 0o7777) for path in files}


def _link(link: Path, target: str) -> None:
    scratch = link.with_name(f"..{secrets.token_hex(4)}")
    scratch.symlink_to(target)
    scratch.replace(link)
