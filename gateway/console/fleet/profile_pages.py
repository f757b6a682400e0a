"""Profiles, and what changed between their versions.

Prompts, and what a provider is given besides, are shown to operators of the project alone; others see that they
changed. The differences are found field by field, and in long texts line by line; that part is pure.
"""

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pydantic import Field, JsonValue
from starlette.responses import Response

from turnstile.gateway.console.page import Console, NoForm, Page, Visit
from turnstile.gateway.console.rendering import render
from turnstile.gateway.console.templating import CONSOLE
from turnstile.ledger.access.profile_versions import (
    TURN_LIMIT,
    ProfileVersion,
    get_profile_version,
    list_profile_versions,
)
from turnstile.ledger.roster import list_profiles
from turnstile.schema.access import Detail
from turnstile.schema.base import Strict
from turnstile.schema.errors import Refused
from turnstile.schema.ids import BoxId
from turnstile.schema.profiles import Profile

Kind = Literal["added", "removed", "changed"]
LineKind = Literal["same", "added", "removed", "left out"]
_CONTEXT = 2
"""Lines that stayed and are shown around those that did not."""
_MOST_LINES = 400
_SHORT = 120


@dataclass(frozen=True, slots=True)
class ChangedLine:
    """A line of a text, or the number of lines that stayed and are left out."""

    kind: LineKind
    text: str


@dataclass(frozen=True, slots=True)
class ProfileChange:
    """A field that differs: before and after on one line, or its text by lines."""

    field: str
    kind: Kind
    before: str
    after: str
    lines: tuple[ChangedLine, ...] = ()
    hidden: bool = False
    """Whether the reader may not see what it says."""


def changes(before: JsonValue, after: JsonValue) -> list[ProfileChange]:
    """The fields that differ, in the order in which the later version has them; none if the two say the same."""
    old, new = dict(_fields(before)), dict(_fields(after))
    names = [*new, *(name for name in old if name not in new)]
    return [_change(name, old.get(name), new.get(name)) for name in names if old.get(name) != new.get(name)]


def _fields(value: JsonValue, path: str = "") -> Iterator[tuple[str, str]]:
    """Each field's path and its value as text; objects are walked, lists of simple values are one field."""
    match value:
        case dict() if value or not path:
            for name, item in value.items():
                yield from _fields(item, f"{path}.{name}" if path else name)
        case str():
            yield path or "text", value
        case list() if all(isinstance(item, str) for item in value):
            yield path or "list", "\n".join(str(item) for item in value) or "none"
        case _:
            yield path or "value", json.dumps(value, ensure_ascii=False, indent=1)


def _change(name: str, before: str | None, after: str | None) -> ProfileChange:
    kind: Kind = "added" if before is None else "removed" if after is None else "changed"
    old, new = before or "", after or ""
    if all("\n" not in text and len(text) <= _SHORT for text in (old, new)):
        return ProfileChange(name, kind, old, new)
    return ProfileChange(name, kind, old, new, tuple(_lines(old, new)))


def _lines(before: str, after: str) -> Iterator[ChangedLine]:
    """The lines of both, with those that stayed around a change; a very long difference is cut, and says so."""
    old, new = before.splitlines(), after.splitlines()
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    sent = 0
    for group in matcher.get_grouped_opcodes(_CONTEXT):
        skipped = group[0][1] if not sent else 0
        if skipped or sent:
            yield ChangedLine("left out", "…")
        for tag, first, last, start, stop in group:
            kept = [ChangedLine("same", text) for text in old[first:last]] if tag == "equal" else []
            gone = [ChangedLine("removed", text) for text in old[first:last]] if tag != "equal" else []
            come = [ChangedLine("added", text) for text in new[start:stop]] if tag != "equal" else []
            for line in (*kept, *gone, *come):
                if sent >= _MOST_LINES:
                    yield ChangedLine("left out", "the rest is too long to show")
                    return
                sent += 1
                yield line


def facts(data: JsonValue) -> Mapping[str, str]:
    """All fields of a version by their paths."""
    return dict(_fields(data))


PROFILES = f"{CONSOLE}/profiles"
_PAGE = 100
_VERSIONS = 50
_UUID = r"^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"
_OPEN = frozenset(
    {
        *("name", "worker_target", "tags", "allowed_tools", "must_end_with", "max_steps", "instances", "run_by"),
        *("memory", "delegation_policy", "budget", "interrupt_on"),
        *(f"llm_config.{name}" for name in ("model", "temperature", "top_p", "max_tokens", "timeout_seconds", "stop")),
        *("llm_config.seed", "llm_config.reasoning_effort"),
    }
)
"""Fields that everybody sees; an object stands for all its fields."""


_ORDER = [*Profile.model_fields]
_UNSET = {"", "null", "{}", "none", "false"}
"""What a field says that nobody has set."""


class ProfilesQuery(Strict):
    """A page of profiles."""

    after: str | None = Field(default=None, min_length=1, max_length=128)
    """Only those that follow this name."""


class VersionsQuery(Strict):
    """Which two versions are compared."""

    new: str | None = Field(default=None, pattern=_UUID)
    """The later one; by default the present one."""
    old: str | None = Field(default=None, pattern=_UUID)
    """The earlier one; by default the one before it."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A field of a version; `value` is None where the reader may not see it."""

    field: str
    value: str | None


def pages(_: Console) -> tuple[Page, ...]:
    """The pages. A profile's name may hold any character, a slash, too."""
    return (
        Page(name="profiles", path=PROFILES, handler=show_profiles, query=ProfilesQuery),
        Page(name="profile", path=f"{PROFILES}/{{name:path}}", handler=show_profile, query=VersionsQuery),
    )


async def show_profiles(visit: Visit[ProfilesQuery, NoForm]) -> Response:
    """A page of profiles."""
    project, after = visit.principal.project_id, visit.query.after
    if visit.fragment:
        return render(visit, "still.html")
    profiles = await list_profiles(visit.console.pool, project, after=after, row_limit=_PAGE + 1)
    page = profiles[:_PAGE]
    following = page[-1].name if len(profiles) > _PAGE else None
    return render(visit, "fleet/profiles.html", profiles=page, after=following)


async def show_profile(visit: Visit[VersionsQuery, NoForm]) -> Response:
    """A profile's versions, what one says, and what changed with it."""
    if visit.fragment:
        return render(visit, "still.html")
    pool, project, name = visit.console.pool, visit.principal.project_id, visit.path["name"]
    versions = await pool.run(lambda conn: list_profile_versions(conn, project, name, row_limit=_VERSIONS))
    new = _named(versions, visit.query.new) or next((version for version in versions if version.is_current), None)
    if not versions or new is None:
        raise Refused("unknown_profile", "the project has no such profile")
    place = versions.index(new)
    old = _named(versions, visit.query.old) or next(iter(versions[place + 1 :]), None)
    whole = visit.principal.sees_detail(Detail.PROMPTS)
    after = await _data(visit, new)
    before = None if old is None else await _data(visit, old)
    return render(
        visit,
        "fleet/profile.html",
        name=name,
        versions=versions,
        most=_VERSIONS,
        turn_limit=TURN_LIMIT,
        new=new,
        old=old,
        changes=None if old is None else [_shown(change, whole=whole) for change in changes(before, after)],
        facts=[
            Fact(field, value if whole or _is_open(field) else None)
            for field, value in sorted(facts(after).items(), key=lambda item: _place(item[0]))
            if value not in _UNSET
        ],
        whole=whole,
    )


async def _data(visit: Visit[VersionsQuery, NoForm], version: ProfileVersion) -> JsonValue:
    project = visit.principal.project_id
    profile = await visit.console.pool.run(lambda conn: get_profile_version(conn, project, version.profile_box_id))
    return None if profile is None else profile.data


def _named(versions: Sequence[ProfileVersion], box: str | None) -> ProfileVersion | None:
    """The version in this box, if it is one of them; raises `Refused` for a box that is of none."""
    if box is None:
        return None
    version = next((version for version in versions if version.profile_box_id == BoxId(box.lower())), None)
    if version is None:
        raise Refused("unknown_profile", "the profile has no such version")
    return version


def _place(field: str) -> tuple[int, str]:
    """Where a field stands: the model behind the name, as people write profiles."""
    first = field.partition(".")[0]
    return (_ORDER.index(first) if first in _ORDER else len(_ORDER), "" if field == "llm_config.model" else field)


def _is_open(field: str) -> bool:
    return field in _OPEN or field.partition(".")[0] in _OPEN


def _shown(change: ProfileChange, *, whole: bool) -> ProfileChange:
    """The change, without what the reader may not see."""
    return change if whole or _is_open(change.field) else replace(change, before="", after="", lines=(), hidden=True)
