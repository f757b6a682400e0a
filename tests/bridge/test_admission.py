"""How often a project's live turns are counted."""

import pytest

from turnstile.bridge.verbs import handlers
from turnstile.bridge.verbs.handlers import AdmissionCache
from turnstile.schema.ids import ProjectId

ONE, OTHER = ProjectId("one"), ProjectId("other")


def asked(counts: AdmissionCache, project: ProjectId, times: int) -> list[int]:
    """The limits that so many enqueues are held against, each of which found room."""
    found: list[int] = []
    for _ in range(times):
        found.append(counts.limit_for(project))
        if found[-1]:
            counts.found(project)
    return found


def test_one_count_stands_for_a_hundredth_of_the_limit() -> None:
    counts = AdmissionCache(300)
    assert asked(counts, ONE, 7) == [300, 0, 0, 300, 0, 0, 300]
    assert asked(counts, OTHER, 2) == [300, 0]


@pytest.mark.parametrize("limit", [1, 99, 100, 199])
def test_a_small_limit_is_exact(limit: int) -> None:
    assert asked(AdmissionCache(limit), ONE, 3) == [limit] * 3


def test_who_found_none_is_counted_each_time() -> None:
    counts = AdmissionCache(1000)
    assert [counts.limit_for(ONE) for _ in range(3)] == [1000] * 3


def test_without_a_limit_nothing_is_counted() -> None:
    assert asked(AdmissionCache(0), ONE, 3) == [0] * 3


def test_projects_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "MAX_PROJECTS", 1)
    counts = AdmissionCache(1000)
    assert asked(counts, ONE, 2) == [1000, 0]
    assert asked(counts, OTHER, 2) == [1000, 0]
    assert asked(counts, ONE, 1) == [1000]
