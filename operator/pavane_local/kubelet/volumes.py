"""Volumes as folders (docs/specs/operator.md 6.8.6)."""

import os
import secrets
import shutil
from pathlib import Path

from pavane_local.kubelet.spawn import CannotStart


def publish(folder: Path, files: dict[str, bytes], mode: int) -> None:
    """Make `folder` show exactly `files` (by name), all at once: `..data` is swapped."""
    wanted = {name: (content, mode) for name, content in files.items()}
    current = folder / "..data"
    if current.exists() and _content(current) == wanted:
        return
    fresh = folder / f"..{secrets.token_hex(4)}"
    try:
        fresh.mkdir(parents=True)
        for name, content in files.items():
            target = inside(fresh, name)
            target.write_bytes(content)
            target.chmod(mode)
    except OSError:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    former = current.resolve() if current.exists() else None
    _link(current, fresh.name)
    for name in files:
        _link(folder / name, f"..data/{name}")
    for entry in folder.iterdir():
        if entry.is_symlink() and entry.name != "..data" and entry.name not in files:
            entry.unlink()
    if former is not None:
        shutil.rmtree(former)


def inside(folder: Path, path: str) -> Path:
    """`path` below `folder`. Raises CannotStart if it leads out."""
    found = Path(os.path.normpath(folder / path.lstrip("/")))
    if not found.is_relative_to(folder):
        raise CannotStart(f'the path "{path}" leaves its volume or container')
    return found


def mount(root: Path, path: str, target: Path) -> None:
    """Let `path` below a container's root folder lead to `target`."""
    link = inside(root, path)
    link.parent.mkdir(parents=True, exist_ok=True)
    _link(link, str(target))


def rewritten(text: str, root: Path, paths: list[str]) -> str:
    """`text` with the root folder in front, if it begins with one of the mount paths."""
    hit = any(text == path or text.startswith(path.rstrip("/") + "/") for path in paths)
    return f"{root}{text}" if hit else text


def _content(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {path.name: (path.read_bytes(), path.stat().st_mode & 0o7777) for path in folder.iterdir()}


def _link(link: Path, target: str) -> None:
    scratch = link.with_name(f"..{secrets.token_hex(4)}")
    scratch.symlink_to(target)
    scratch.replace(link)
