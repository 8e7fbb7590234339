"""How the servers of a log are asked to adopt it: by a node beside its root in the metadata store (waltz.md 13.6).

A server has the keys of the metadata store and the way to the storage nodes; who asks needs the former alone.
"""

from __future__ import annotations

import ssl
from collections import Counter
from dataclasses import replace
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from pavane.waltz.aio.adopting import adopt_cluster
from pavane.waltz.aio.cluster import ClusterConfig
from pavane.waltz.errors import WaltzError
from pavane.waltz.state.adoption import Adopted
from pavane.waltz.state.metadata import BadVersion, Metadata, MetadataError
from pavane.waltz.wire.blobs import Rollout


class Adoption(BaseModel):
    """What the node holds: the question, then who has taken it up, then the answer."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    generation: int
    """Its servers are to own everything afterwards; one of them does it."""
    servers: int
    """How many of them are wanted."""
    dry_run: bool
    keys: int = 0
    """Over how many partitions keys are spread, where that is known and not all of them."""
    storage: tuple[str, ...] = ()
    """The storage nodes, where they are known to be other ones than those that the server began with."""
    state: Literal["asked", "taken", "done", "refused"] = "asked"
    why: str = ""
    """In words, where it was refused."""
    partitions: int = 0
    transactions: int = 0
    """How many all partitions hold together."""
    copied_anew: dict[str, int] = {}
    """Storage node → in how many partitions its copy is given up and made again from the others."""


def request_path(root: str) -> str:
    """Return where the node is: beside the cluster's root, which may be missing."""
    return f"{root}-adopt"


async def adopt_if_asked(
    store: Metadata, config: ClusterConfig, generation: int, tls: ssl.SSLContext | None, *, hold: bool = False
) -> Adoption | None:
    """Look whether an adoption is asked for, carry it out and answer; ``None``: there was nothing to do.

    ``hold`` as ``adopt_cluster``. Raises ``MetadataError``.
    """
    path = request_path(config.root)
    node = await store.get(path)
    try:
        asked = None if node is None else Adoption.model_validate_json(node.data)
    except ValidationError:
        return None
    if node is None or asked is None or asked.state != "asked" or asked.generation != generation:
        return None
    try:
        version = await store.set(path, _written(asked, state="taken"), node.version)
    except BadVersion:  # another server was faster
        return None
    config = replace(config, storage=asked.storage or config.storage)
    admins = [f"{address.rpartition(':')[0]}:{config.admin_port}" for address in config.storage]
    rollout = Rollout(asked.generation, asked.servers)
    try:
        found = await adopt_cluster(
            store, config, admins, tls, rollout, dry_run=asked.dry_run, hold=hold, keys=asked.keys
        )
        answer = asked.model_copy(update=_summary(found))
    except (WaltzError, MetadataError) as error:
        answer = asked.model_copy(update={"state": "refused", "why": str(error)})
    await store.set(path, _written(answer), version)
    return answer


def _summary(found: list[Adopted]) -> dict[str, object]:
    return {
        "state": "done",
        "partitions": len(found),
        "transactions": sum(one.last + 1 for one in found),
        "copied_anew": dict(Counter(node for one in found for node in one.anew)),
    }


def _written(adoption: Adoption, **changed: object) -> bytes:
    return adoption.model_copy(update=changed).model_dump_json(exclude_defaults=True).encode()
