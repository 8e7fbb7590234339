"""What the shell completes: kinds, names of resources, pods. Nothing, where the cluster cannot be asked."""

import asyncio
from collections.abc import Sequence
from typing import Any

from pavane_cli.kinds import NAMES

ASK_S = 2.0  # who waits presses a key again


def references(ctx: Any, incomplete: str) -> list[str]:
    """Return ``kind/`` or, behind a kind, ``kind/name``."""
    kind, slash, _ = incomplete.partition("/")
    if not slash:
        return [f"{short}/" for short, _, _ in NAMES if short.startswith(kind)]
    return [f"{kind}/{name}" for name in _names(ctx, kind) if f"{kind}/{name}".startswith(incomplete)]


def kinds(ctx: Any, incomplete: str) -> list[str]:
    """Return kinds, and behind ``kind/`` what ``references`` does."""
    if "/" in incomplete:
        return references(ctx, incomplete)
    return [short for short, _, _ in NAMES if short.startswith(incomplete)]


def names(ctx: Any, incomplete: str) -> list[str]:
    """Return names of the kind that stands before, of RaftClusters where none does."""
    kind = str(ctx.params.get("kind") or _group(ctx))
    return [name for name in _names(ctx, kind) if name.startswith(incomplete)]


def pods(ctx: Any, incomplete: str) -> list[str]:
    """Return names of pods."""
    from pavane_operator.kube.resources import PODS  # noqa: PLC0415 - as below

    return [name for name in _listed(ctx, PODS) if name.startswith(incomplete)]


def _group(ctx: Any) -> str:
    """The short name of a kind among the groups that a command is in; raft for ``pavane connection``."""
    words = []
    while ctx is not None:
        words.append(ctx.info_name)
        ctx = ctx.parent
    return next((short for short, _, _ in NAMES if short in words), "raft")


def _names(ctx: Any, kind: str) -> Sequence[str]:
    from pavane_cli.target import KINDS  # noqa: PLC0415 - as below

    resource = KINDS.get(kind.lower())
    return [] if resource is None else _listed(ctx, resource)


def _listed(ctx: Any, resource: Any) -> Sequence[str]:
    from pavane_cli.target import Where, cluster, namespace_of  # noqa: PLC0415 - its clients take long to import

    where = Where(ctx.params.get("kubeconfig"), ctx.params.get("context"))
    if (folder := ctx.params.get("folder")) is not None:
        where = Where(folder / "kubeconfig")
    namespace = ctx.params.get("namespace") or namespace_of(where)

    async def ask() -> list[str]:
        async with asyncio.timeout(ASK_S), cluster(where) as client:
            return [each["metadata"]["name"] for each in (await client.list_all(resource, namespace)).items]

    try:
        return asyncio.run(ask())
    except Exception:
        return []
