"""The order of a turn's streamed chunks: which are new, which come late, and where some are missing (protocol §5).

Pure. Chunks of a turn are ordered by step, attempt and index; a higher attempt of a step replaces what lower ones sent.
"""

import re
from dataclasses import dataclass

from turnstile.schema.ids import StepId
from turnstile.schema.wire.events import Chunk

_NUMBER = re.compile(r"-s([0-9]+)\Z")


@dataclass(frozen=True, slots=True)
class ChunkEffect:
    """What a new chunk means for the text before it."""

    restarted: bool
    """It begins another attempt at its step: the text of the attempt before is void."""
    missed: bool
    """Chunks before it were not received."""


class ChunkOrder:
    """Follows the chunks of one agent; `take` each as it arrives."""

    def __init__(self) -> None:
        self._last: Chunk | None = None

    def take(self, chunk: Chunk) -> ChunkEffect | None:
        """What the chunk means, or None if it is late or repeated and must be left out."""
        last = self._last
        if last is not None and last.agent_turn_id != chunk.agent_turn_id:
            last = None
        if last is not None and step_number(chunk.step_id) < step_number(last.step_id):
            return None
        if last is not None and last.step_id != chunk.step_id:
            last = None
        if last is not None and (chunk.attempt, chunk.index) <= (last.attempt, last.index):
            return None
        restarted = last is not None and chunk.attempt > last.attempt
        expected = 0 if last is None or restarted else last.index + 1
        self._last = chunk
        return ChunkEffect(restarted=restarted, missed=chunk.index > expected)


def step_number(step: StepId) -> int:
    """The number of a step in its turn, as its id ends with it; 0 for an id of a stranger."""
    match = _NUMBER.search(step)
    return int(match[1]) if match else 0
