"""How often the live turns of a project are counted against `[limits].max_live_turns` (docs/limits.md, `project_full`).

A count reads a row for each, so one stands for a hundredth of the limit's enqueues. Bounded: of the projects that asked
longest ago the next enqueue counts.
"""

from collections import OrderedDict

from turnstile.schema.ids import ProjectId

SHARE = 100
"""The limit may be passed by a hundredth for each bridge, and a limit below twice this by none."""
MAX_PROJECTS = 10_000


class AdmissionCache:
    """Enqueues of each project that need no count, since one found room a moment ago."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._spare: OrderedDict[ProjectId, int] = OrderedDict()

    def limit_for(self, project: ProjectId) -> int:
        """The limit that an enqueue is to be held against; 0 if it needs none."""
        if (spare := self._spare.pop(project, 0)) == 0:
            return self._limit
        if spare > 1:
            self._spare[project] = spare - 1
        return 0

    def found(self, project: ProjectId) -> None:
        """A count has found room."""
        if (spare := self._limit // SHARE - 1) > 0:
            self._spare[project] = spare
            if len(self._spare) > MAX_PROJECTS:
                self._spare.popitem(last=False)
