"""The application's part of a checkpoint (docs/specs/ambrosia.md 18.6, blob)."""

from dataclasses import dataclass, field, fields
from typing import Any

from pavane.ambrosia.client.errors import ImmortalError
from pavane.ambrosia.client.values import pack, unpack

MAGIC = b"PVIM\x01"
_HEAD_BYTES = len(MAGIC) + 16


@dataclass(frozen=True, slots=True)
class ImmortalSnapshot:
    """All of an immortal that survives."""

    seq: int
    digest: int
    app: str
    version: int
    python: str
    calls: int
    flows_made: int
    clock: int
    trace: int
    state: dict[str, bytes]
    flows: list[Any]
    keys: list[Any]
    marks: bytes = field(compare=False)
    """Four bytes for each message handled since the checkpoint before, in order."""
    code: list[Any] = field(compare=False, default_factory=list)
    """Digests of the code of the handlers (``changes``)."""

    def write(self) -> bytes:
        """Return it as bytes."""
        content = _content(self)
        seq, digest = content.pop("seq"), content.pop("digest")
        head: bytes = MAGIC + seq.to_bytes(8, "little", signed=True) + digest.to_bytes(8, "little")
        return head + pack(content)

    @classmethod
    def read(cls, blob: bytes) -> "ImmortalSnapshot":
        """Return what ``write`` wrote; raises ``ImmortalError`` for anything else."""
        if not blob.startswith(MAGIC) or len(blob) < _HEAD_BYTES:
            raise ImmortalError("the checkpoint was not written by this library")
        seq = int.from_bytes(blob[5:13], "little", signed=True)
        digest = int.from_bytes(blob[13:21], "little")
        try:
            content = {"code": [], **unpack(memoryview(blob)[_HEAD_BYTES:])}  # 0.1.0 wrote none
            if set(content) != {each.name for each in fields(cls)} - {"seq", "digest"}:
                raise ImmortalError(
                    f"the checkpoint holds {', '.join(content)}: another version of this library wrote it"
                )
            return cls(seq=seq, digest=digest, **content)
        except (ValueError, TypeError) as error:
            raise ImmortalError(f"the checkpoint cannot be read: {error}") from error

    def same(self, other: "ImmortalSnapshot") -> bool:
        """Say whether a replay came to the same state; the Python version may differ."""
        return not self.differences(other)

    def differences(self, other: "ImmortalSnapshot") -> list[str]:
        """Name what differs after a replay, attributes of the state as ``self.name``."""
        one, two = _plain(self), _plain(other)
        mine, theirs = one.pop("state"), two.pop("state")
        found = [f"self.{name}" for name in sorted({*mine, *theirs}) if mine.get(name) != theirs.get(name)]
        return found or [name for name in one if one[name] != two[name]]


def _content(snapshot: ImmortalSnapshot) -> dict[str, Any]:
    """Return its parts by name; ``asdict`` would copy thousands of keys while callers wait."""
    return {each.name: getattr(snapshot, each.name) for each in fields(snapshot)}


def _plain(snapshot: ImmortalSnapshot) -> Any:
    content = _content(snapshot)
    del content["marks"], content["python"], content["code"]
    content["keys"] = sorted(content["keys"])  # 0.1.0 had them in the order of the requests
    content["state"] = {name: unpack(data) for name, data in content["state"].items()}  # 1 is 1.0
    return unpack(pack(content))
