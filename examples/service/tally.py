"""A service that keeps a sum: its agents' turns are numbers, and each turn delivers the sum so far.

python examples/service/tally.py --data .turnstile

Its state is its own, so that only one process may have it: the target svc1_tally_main. A turn whose process died may
come a second time; what it added is kept under its id, so that it counts once (docs/services.md).
"""

import json
import os
from pathlib import Path

from pydantic import JsonValue

from turnstile import Refused, ServiceTurn, run_service

FILE = Path(os.environ.get("TALLY_FILE", "tally.json"))


class Tally:
    """The sum after each turn, in a file."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._sums: dict[str, int] = json.loads(file.read_text()) if file.exists() else {}

    async def add(self, turn: ServiceTurn) -> dict[str, JsonValue]:
        """Add what the turn says, once."""
        if turn.turn.agent_turn_id not in self._sums:
            try:
                number = int(turn.instruction)
            except ValueError:
                raise Refused("not_a_number", "the instruction must be a number") from None
            self._sums[turn.turn.agent_turn_id] = self._last() + number
            self._save()
        return {"sum": self._sums[turn.turn.agent_turn_id]}

    def _last(self) -> int:
        return list(self._sums.values())[-1] if self._sums else 0

    def _save(self) -> None:
        written = self._file.with_suffix(".new")
        written.write_text(json.dumps(self._sums))
        written.replace(self._file)


if __name__ == "__main__":
    run_service("svc1_tally_main", Tally(FILE).add)
