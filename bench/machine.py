"""What the machine is and does: a figure without it says nothing."""

import os
import platform
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

FEW_CORES = 2
BUSY_LOAD_PER_CORE = 1.0  # above it somebody else has a good part of the machine
FSYNCS = 100
FSYNC_BYTES = 128  # about the record of a small update

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine before a benchmark begins."""

    cores: int
    load: float
    """Load average of the last minute."""
    fsync_ms: float
    """Median of appending a few bytes and fdatasync, where the benchmark writes."""
    python: str
    system: str

    def summary(self) -> str:
        """One line, with a warning where the figures cannot be trusted."""
        busy = "; the machine is busy, the figures are too bad" if self.load > self.cores * BUSY_LOAD_PER_CORE else ""
        return f"{self.cores} cores, load {self.load:.1f}, fsync p50 {self.fsync_ms:.2f} ms, Python {self.python}{busy}"


def look(folder: Path) -> Machine:
    """Look at the machine; writes and syncs a small file in ``folder``."""
    return Machine(
        cores=len(os.sched_getaffinity(0)),
        load=os.getloadavg()[0],
        fsync_ms=_fsync_ms(folder / "fsync"),
        python=platform.python_version(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
    )


def resident_mb(pid: int) -> float:
    """Resident memory of a process in megabytes (10⁶ bytes)."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def cpu_s(pid: int) -> float:
    """CPU time that a process has used so far, in seconds (steps of 10 ms)."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def _fsync_ms(path: Path) -> float:
    times = []
    with path.open("wb", buffering=0) as file:
        for _ in range(FSYNCS):
            began = time.perf_counter()
            file.write(bytes(FSYNC_BYTES))
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - began)
    path.unlink()
    return statistics.median(times) * 1000
