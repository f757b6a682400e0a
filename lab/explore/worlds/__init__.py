"""The worlds: each module adds its own, and `all_worlds` finds them by name."""

from functools import cache

from lab.explore.world import World
from lab.explore.worlds import one_agent, threads, trees

_MODULES = (one_agent, trees, threads)


@cache
def all_worlds() -> dict[str, World]:
    """Every world by name, the smallest first."""
    return {world.name: world for module in _MODULES for world in module.worlds()}
