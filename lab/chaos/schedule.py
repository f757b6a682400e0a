"""The faults of a run and their times: derived from a seed alone, so that a schedule can be repeated. Pure.

Two runs of a schedule may still differ: what a fault hits depends on the machine.
"""

import random
from dataclasses import dataclass
from typing import Literal

from lab.chaos.environment import SERVERS, Size
from turnstile.schema.wire import subjects

Action = Literal["kill", "pause", "late", "cut", "stall", "refuse", "delete", "wipe", "tail"]


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. `seconds` is how long it lasts, or how long a killed process stays dead. `target` is a process, a
    server, or `process:server` for the connection between them. `late` hits a worker that is running steps. `tail` is
    a power failure of NATS; `seconds` is how long it stays dead."""

    at: float
    action: Action
    target: str
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"{self.at:7.1f} s  {self.action:<7} {self.target}" + (f"  {self.seconds:.1f} s" if self.seconds else "")


_SHARES = {"worker": 0.3, "bridge": 0.24, "tools": 0.1, "nats": 0.14, "temporal": 0.1, "postgres": 0.12}


def make_schedule(
    seed: int, kills: int, seconds: float, size: Size, *, wipes: int, deletions: int, tails: int = 0
) -> list[Fault]:
    """The faults of a seed: `kills` kills in `seconds`, and pauses and cuts in proportion."""
    draw = random.Random(seed)  # noqa: S311 -- a schedule, not a secret
    count = {"worker": size.workers, "bridge": size.bridges, "tools": size.tools}

    def instance(kind: str) -> str:
        return f"{kind}-{draw.randint(1, count[kind])}" if kind in count else kind

    def moment(last: float = 0.0) -> float:
        return draw.uniform(min(2.0, seconds / 10), max(2.0, seconds - last))

    def way() -> str:
        kind = draw.choice(["worker", "bridge", "tools", "client"])
        servers = ["nats"] if kind == "tools" else ["postgres", "nats"] if kind == "client" else list(SERVERS)
        server = draw.choice(servers)
        return server if draw.random() < 0.25 else f"{'client' if kind == 'client' else instance(kind)}:{server}"

    faults: list[Fault] = []
    kinds = [kind for kind, share in _SHARES.items() for _ in range(max(1, round(kills * share)))]
    kinds += ["worker"] * (kills - len(kinds))
    draw.shuffle(kinds)
    faults += [Fault(moment(), "kill", instance(kind), draw.uniform(0.2, 2.0)) for kind in kinds[:kills]]
    for _ in range(max(1, kills // 4)):
        kind = draw.choice(list(_SHARES))
        faults.append(Fault(moment(), "pause", instance(kind), draw.uniform(0.5, 4.0)))
    for _ in range(max(1, kills // 15)):
        faults.append(Fault(moment(15), "late", "worker"))
    for _ in range(max(1, kills // 2)):
        action = draw.choice(["cut", "cut", "stall", "refuse"])
        lasts = 0.0 if action == "cut" else draw.uniform(0.5, 4.0)
        faults.append(Fault(moment(), "cut" if action == "cut" else _lasting(action), way(), lasts))
    streams = ["streams", subjects.EVT_STREAM, subjects.CMD_STREAM]
    faults += [Fault(moment(5), "delete", streams[number % 3]) for number in range(deletions)]
    faults += [Fault(moment(10), "wipe", "temporal") for _ in range(wipes)]
    faults += [Fault(moment(10), "tail", "nats", draw.uniform(0.2, 2.0)) for _ in range(tails)]
    return sorted(faults, key=lambda fault: fault.at)


def _lasting(action: str) -> Action:
    return "stall" if action == "stall" else "refuse"
