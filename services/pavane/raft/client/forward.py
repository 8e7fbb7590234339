"""A watcher whose cluster went back in time: it has seen what the cluster does not have (docs/specs/raft.md 12.6)."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

from pavane.raft.client.key_calls import Changes, Outcome
from pavane.raft.errors import RaftError, WentBack


async def forward_only(
    changes: AsyncGenerator[Changes, None], first: int, read: Callable[[], Awaitable[Outcome]]
) -> AsyncGenerator[Changes, None]:
    """Yield ``changes``, which were asked for from ``first`` on, as long as they go forward.

    A peer that has applied less than the watcher saw either lags, or its data are those of an older time. ``read``, a
    linearizable read, tells which: it sees everything that anybody has seen. Raises ``WentBack``.
    """
    seen = first - 1
    async with aclosing(changes):
        async for change in changes:
            if change.revision >= seen:
                seen = change.revision
                yield change
                continue
            try:
                revision = (await read()).revision
            except RaftError:
                continue  # the next sign of life asks again
            if revision < seen:
                raise WentBack(seen, revision)
