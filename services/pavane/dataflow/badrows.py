"""Rows that could not be decoded, as a replica tells its controller of them: in a remark of its report."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from pavane.compute.wire.responses import Blocker
from pavane.dataflow.ports import BadRow, Table
from pavane.dataflow.source import LogSource

REASON = "BadRows"


@dataclass(frozen=True, slots=True)
class BadRows:
    """How many there are, of which tables, and the last of them."""

    count: int = 0
    of: Mapping[str, int] = field(default_factory=dict)
    last: tuple[BadRow, ...] = ()

    @classmethod
    def of_source(cls, source: LogSource) -> BadRows:
        """Those that a source has met."""
        counts = {_key(table): count for table, count in source.bad_of.items()}
        return cls(source.bad_count, counts, tuple(source.bad))

    @classmethod
    def told(cls, blocker: Blocker) -> BadRows:
        """Those that a remark of this release tells of."""
        last = tuple(BadRow(**each) for each in json.loads(blocker.detail["last"]))
        return cls(int(blocker.detail["count"]), json.loads(blocker.detail["of"]), last)

    def blocker(self) -> Blocker:
        """The remark; it holds up nothing."""
        last = json.dumps([asdict(row) for row in self.last])
        detail = {"count": str(self.count), "of": json.dumps(self.of), "last": last}
        return Blocker(REASON, f"{self.count} rows could not be decoded", detail, info=True)

    def of_table(self, table: Table) -> int:
        """How many are rows of this table."""
        return self.of.get(_key(table), 0)


def _key(table: Table) -> str:
    """Scripts may have tables of one name that differ in all else."""
    return repr(table)
