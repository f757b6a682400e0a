"""Saves counts of a project's live turns against `[limits].max_live_turns` (docs/limits.md, `project_full`).

A count reads one row for each live turn. After a count that is below the limit, the next enqueues, a hundredth of the
limit, pass without a count. Bounded: if more than `MAX_PROJECTS` projects enqueue, those that counted longest ago are
forgotten, and their next enqueue counts again.
"""

from collections import OrderedDict

from turnstile.schema.ids import ProjectId

SHARE = 100
"""Each bridge may exceed the limit by one part in `SHARE`; a limit below twice `SHARE` is never exceeded."""
MAX_PROJECTS = 10_000


class AdmissionCache:
    """The number of enqueues that each project has left before live turns are counted again."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._spare: OrderedDict[ProjectId, int] = OrderedDict()

    def limit_for(self, project: ProjectId) -> int:
        """The limit that the next enqueue must check, or 0 if it needs no count."""
        if (spare := self._spare.pop(project, 0)) == 0:
            return self._limit
        if spare > 1:
            self._spare[project] = spare - 1
        return 0

    def found(self, project: ProjectId) -> None:
        """Record that a count found the project below its limit."""
        if (spare := self._limit // SHARE - 1) > 0:
            self._spare[project] = spare
            if len(self._spare) > MAX_PROJECTS:
                self._spare.popitem(last=False)
