"""A JSON schema compiled into checks, which end after so many looks whatever schema and value are. Pure.

The keywords of draft 2020-12 are checked as it says, and lists of `items` and `dependencies` of earlier drafts where
`$schema` names one. What cannot be checked is refused as the schema is compiled, with its keyword: a pattern without
a form that is matched in linear time, a reference that leads nowhere or out of the schema, `unevaluatedItems`,
`unevaluatedProperties`, and references that depend on who refers. `format` and the like annotate, as the draft says.
Numbers are compared as the decimals that they are written as. A look costs some 0.7 µs.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import isfinite
from typing import Any, Final, TypeAlias, cast
from urllib.parse import unquote

from turnstile.schema.errors import TurnstileError
from turnstile.schema.patterns import Pattern, pattern

MOST_LOOKS = 40_000
"""The most looks of one check: one for each schema that a value is held against, more for patterns and long lists."""
_DEEPEST_LOOK = 300
_LOOKS_OF_FAULT, _LOOKS_OF_KEY = 8, 1
_MOST_FAULTS = 20
_LONGEST_WORDS, _SHOWN_PARTS = 300, 50
_NAMES_OF_LOOK = 8
_WEAK = frozenset({"anyOf", "oneOf"})
_OTHER_SHAPE = frozenset({"type", "const", "enum"})
_NOT_CHECKED = frozenset({"unevaluatedItems", "unevaluatedProperties", "$dynamicRef", "$recursiveRef"})
_ANNOTATIONS = frozenset({"format", "contentEncoding", "contentMediaType", "contentSchema", "$anchor", "$id"})
_EARLIER_DRAFTS = ("draft-03", "draft-04", "draft-06", "draft-07", "2019-09")

Json: TypeAlias = Any
"""A JSON value: a check looks at values of every shape, and casts would double its cost."""


class SchemaTooCostly(TurnstileError):
    """Checking a value against a schema takes too long."""

    code: str = "schema_too_costly"


class Unusable(ValueError):
    """Why a schema is none, or which keyword of it cannot be enforced."""

    def __init__(self, where: Sequence[str], keyword: str = "", why: str = "") -> None:
        self.keyword = keyword
        """The keyword that cannot be enforced; empty if it is no JSON schema."""
        at = "/" + "/".join(where)[:200]
        super().__init__(
            f"has {keyword} at {at}, which cannot be enforced: {why}" if keyword else f"is no JSON schema at {at}"
        )


@dataclass(slots=True)
class Mismatch:
    """Where a value does not match a schema, and which keyword says so."""

    keyword: str
    say: Callable[[], str]
    outward: list[str | int] = field(default_factory=list[str | int])
    """Its place in the value, from the inside."""
    outward_schema: list[str | int] = field(default_factory=list[str | int])
    branches: tuple[Sequence["Mismatch"], ...] = ()
    """Of `anyOf` and `oneOf`: what was wrong with each alternative."""

    @property
    def message(self) -> str:
        """What is wrong, with a part of the value."""
        return self.say()[:_LONGEST_WORDS]

    @property
    def path(self) -> tuple[str | int, ...]:
        """Its place in the value."""
        return tuple(reversed(self.outward))

    @property
    def schema_path(self) -> tuple[str | int, ...]:
        """Its place in the schema, which holds nothing of the value."""
        return tuple(reversed(self.outward_schema))


class _Run:
    """One check: how many looks are left, and what was found where references meet the same value again."""

    __slots__ = ("depth", "known", "left")

    def __init__(self) -> None:
        self.left = MOST_LOOKS
        self.depth = 0
        self.known: dict[tuple[int, int], Sequence[Mismatch]] = {}

    def spend(self, looks: int) -> None:
        self.left -= looks
        if self.left < 0:
            raise SchemaTooCostly("the check takes too long")


Found: TypeAlias = Sequence[Mismatch]
Check: TypeAlias = Callable[[Json, _Run], Found]
_NONE: Final[Found] = ()
_NO_CHECKS: Final[Sequence[Check]] = ()
_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "null": (type(None),),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "string": (str,),
    "array": (list,),
    "object": (dict,),
}
_ALL: Final = (type(None), bool, int, float, str, list, dict)


_type_of = cast("Callable[[Json], type]", type)


class _Node:
    """A schema: the checks that values of each type are held against."""

    __slots__ = ("by_type",)

    def __init__(self) -> None:
        self.by_type: dict[type, list[Check]] = {}

    def add(self, types: Iterable[type], check: Check) -> None:
        for kind in types:
            self.by_type.setdefault(kind, []).append(check)

    def visit(self, value: Json, run: _Run) -> Found:
        run.left -= 1
        if run.left < 0 or run.depth > _DEEPEST_LOOK:
            raise SchemaTooCostly("the check takes too long")
        run.depth += 1
        faults: Found = _NONE
        for check in self.by_type.get(_type_of(value), _NO_CHECKS):
            if more := check(value, run):
                run.left -= _LOOKS_OF_FAULT * len(more)
                faults = [*faults, *more] if faults else more
                if len(faults) >= _MOST_FAULTS:
                    break
        run.depth -= 1
        return faults


class Checks:
    """A compiled schema."""

    def __init__(self, schema: Mapping[str, Json]) -> None:
        """Compile it; raises `Unusable`. Its size and depth must have been bounded before."""
        compiler = _Compiler(schema)
        self._root = compiler.node(schema, ())
        self.annotations = frozenset(compiler.annotations)
        """Keywords of the schema that say something and decide nothing."""

    def faults(self, value: Json) -> list[Mismatch]:
        """What does not match, twenty at most; raises `SchemaTooCostly`."""
        try:
            return list(self._root.visit(value, _Run())[:_MOST_FAULTS])
        except RecursionError:
            raise SchemaTooCostly("the value or its schema is nested too deeply") from None

    def fault(self, value: Json) -> Mismatch | None:
        """What to say first of what does not match; None if all does. Raises `SchemaTooCostly`."""
        faults = self.faults(value)
        return _best(faults) if faults else None


def _best(faults: Sequence[Mismatch]) -> Mismatch:
    """The fault that is nearest to the root; of alternatives that of the only one which was meant."""
    best = min(faults, key=lambda fault: (len(fault.outward), fault.keyword in _WEAK))
    meant = [branch for branch in best.branches if branch and not _other_shape(branch, best)]
    return _best(meant[0]) if len(meant) == 1 else best


def _other_shape(branch: Sequence[Mismatch], whole: Mismatch) -> bool:
    return any(fault.keyword in _OTHER_SHAPE and len(fault.outward) <= len(whole.outward) for fault in branch)


def key(value: Json, run: _Run | None = None) -> str:
    """A text that two JSON values share only if they are equal: 1 and 1.0 are, 1 and true are not."""
    if run is not None:
        run.spend(_LOOKS_OF_KEY)
    match value:
        case str():
            return f"s{len(value)}:{value}"
        case bool() | None:
            return str(value)
        case int():
            return f"n{value:x}"
        case float():
            return f"n{int(value):x}" if isfinite(value) and value.is_integer() else f"n{value!r}"
        case list():
            return f"[{','.join([key(part, run) for part in cast('list[Json]', value)])}]"
        case dict():
            pairs = [key(name, run) + key(part, run) for name, part in cast("dict[str, Json]", value).items()]
            return f"{{{','.join(sorted(pairs))}}}"
        case _:
            raise TypeError(f"no JSON: {type(value).__name__}")


def shown(value: Json) -> str:
    """A value within a sentence; what is large is counted instead."""
    match value:
        case str():
            return repr(value[:_LONGEST_WORDS])
        case list() | dict():
            whole = cast("list[Json] | dict[str, Json]", value)
            kind = "list" if isinstance(value, list) else "object"
            return repr(whole) if _is_small(whole) else f"a {kind} of {len(whole)} parts"
        case int() if value.bit_length() > _LONGEST_WORDS:
            return "a number of many digits"
        case _:
            return repr(value)


def _is_small(value: Json) -> bool:
    waiting, seen = [value], 0
    while waiting:
        part = waiting.pop()
        seen += 1
        if seen > _SHOWN_PARTS or (isinstance(part, str) and len(part) > _LONGEST_WORDS):
            return False
        if isinstance(part, int) and part.bit_length() > _LONGEST_WORDS:
            return False
        if isinstance(part, list | dict):
            parts = cast("list[Json]", part) if isinstance(part, list) else [*cast("dict[str, Json]", part).values()]
            if len(parts) > _SHOWN_PARTS:
                return False
            waiting += parts
    return True


def is_multiple(value: float, of: float) -> bool:
    """Whether one number is a multiple of the other, as the decimals that they are written as."""
    if any(isinstance(number, float) and not isfinite(number) for number in (value, of)):
        return False
    (a, i), (b, j) = _decimal(value), _decimal(of)
    if i >= j:
        return a * pow(10, i - j, b) % b == 0
    return a % (b * 10 ** (j - i)) == 0


def _decimal(number: float) -> tuple[int, int]:
    """A number as digits and the exponent of ten that they are times."""
    if isinstance(number, int):
        return number, 0
    digits, _, exponent = repr(abs(number)).partition("e")
    whole, _, fraction = digits.partition(".")
    return int(whole + fraction), int(exponent or 0) - len(fraction)


def _fault(keyword: str, say: Callable[[], str]) -> Found:
    return [Mismatch(keyword, say, [], [keyword])]


def _within(faults: Found, inner: Iterable[str | int], *at: str | int) -> Found:
    """Faults of a part: `inner` is its place in the value, `at` in the schema, both from the inside."""
    for fault in faults:
        fault.outward += inner
        fault.outward_schema += at
    return faults


class _Compiler:
    """Makes nodes of the schemas within one document; each is made once, so that references may be circles."""

    def __init__(self, root: Mapping[str, Json]) -> None:
        self._root = root
        self._id = root.get("$id") if isinstance(root.get("$id"), str) else None
        dialect = root.get("$schema")
        self.early = isinstance(dialect, str) and any(draft in dialect for draft in _EARLIER_DRAFTS)
        self._nodes: dict[int, _Node] = {}
        self.annotations: set[str] = set()

    def node(self, schema: Json, where: tuple[str, ...]) -> _Node:
        """The node of a schema; raises `Unusable`."""
        if isinstance(schema, bool):
            node = _Node()
            if not schema:
                node.add(_ALL, _never)
            return node
        if not isinstance(schema, dict):
            raise Unusable(where)
        keywords = cast("dict[str, Json]", schema)
        if (node := self._nodes.get(id(keywords))) is None:
            node = self._nodes[id(keywords)] = _Node()
            self._fill(node, keywords, where)
        return node

    def _fill(self, node: _Node, schema: Mapping[str, Json], where: tuple[str, ...]) -> None:
        for keyword, value in schema.items():
            place = (*where, keyword)
            if not _has_form(keyword, value, early=self.early):
                raise Unusable(_first_fault(keyword, value, place))
            if keyword in _NOT_CHECKED or (keyword == "$id" and where):
                raise Unusable(place, keyword, "it is not understood here")
            if keyword in _ANNOTATIONS:
                self.annotations.add(keyword)
            if (make := _KEYWORDS.get(keyword)) is None:
                continue
            for types, check in make(self, value, schema, place):
                node.add(types, check)

    def named(self, value: Mapping[str, Json], where: tuple[str, ...]) -> dict[str, _Node]:
        """Schemas by name."""
        return {name: self.node(part, (*where, name)) for name, part in value.items()}

    def listed(self, value: Sequence[Json], where: tuple[str, ...]) -> list[_Node]:
        """Schemas in a list."""
        return [self.node(part, (*where, str(n))) for n, part in enumerate(value)]

    def pattern(self, text: str, where: tuple[str, ...], keyword: str) -> Pattern:
        """A compiled pattern; raises `Unusable`."""
        try:
            return pattern(text)
        except ValueError as error:
            raise Unusable(where, keyword, f"it is {error}") from None

    def referred(self, target: str, where: tuple[str, ...]) -> _Node:
        """The node that a reference leads to; raises `Unusable`."""
        target_schema: Json = self._root
        if self._id and target.startswith(self._id.rstrip("#")):
            target = target[len(self._id.rstrip("#")) :]
        if target not in ("", "#") and not target.startswith("#/"):
            raise Unusable(where, "$ref", "it leads out of the schema, or to an anchor")
        steps = [
            unquote(part).replace("~1", "/").replace("~0", "~") for part in target.removeprefix("#").split("/")[1:]
        ]
        for step in steps:
            if isinstance(target_schema, list):
                parts = cast("list[Json]", target_schema)
                target_schema = dict(zip(map(str, range(len(parts))), parts, strict=True))
            if isinstance(target_schema, dict) and step in target_schema:
                target_schema = cast("dict[str, Json]", target_schema)[step]
            else:
                raise Unusable(where, "$ref", "it leads nowhere")
        return self.node(target_schema, tuple(steps))


Made: TypeAlias = Iterable[tuple[Iterable[type], Check]]
"""Checks, and the types of values that each is for."""
Schema: TypeAlias = Mapping[str, Json]
Where: TypeAlias = tuple[str, ...]
Maker: TypeAlias = Callable[[_Compiler, Json, Schema, Where], Made]
_NUMBERS: Final = (int, float)


def _never(value: Json, run: _Run) -> Found:
    return [Mismatch("false", lambda: f"False schema does not allow {shown(value)}")]


# of any type


def _type(compiler: _Compiler, kinds: Json, schema: Schema, where: Where) -> Made:
    names = [kinds] if isinstance(kinds, str) else cast("list[str]", kinds)
    right = {kind for name in names for kind in _TYPES[name]}
    listing = ", ".join(map(repr, names))

    def wrong(value: Json, run: _Run) -> Found:
        return _fault("type", lambda: f"{shown(value)} is not of type {listing}")

    def no_integer(value: Json, run: _Run) -> Found:
        return _NONE if value.is_integer() else wrong(value, run)

    others = [t for t in _ALL if t not in right]
    if int in right and float in others:
        others.remove(float)
        return [(others, wrong), ((float,), no_integer)]
    return [(others, wrong)]


def _enum(compiler: _Compiler, allowed: Json, schema: Schema, where: Where) -> Made:
    keys = frozenset(map(key, allowed))

    def check(value: Json, run: _Run) -> Found:
        if key(value, run) in keys:
            return _NONE
        return _fault("enum", lambda: f"{shown(value)} is not one of {shown(allowed)}")

    return [(_ALL, check)]


def _const(compiler: _Compiler, only: Json, schema: Schema, where: Where) -> Made:
    constant = key(only)

    def check(value: Json, run: _Run) -> Found:
        return _NONE if key(value, run) == constant else _fault("const", lambda: f"{shown(only)} was expected")

    return [(_ALL, check)]


def _ref(compiler: _Compiler, target: Json, schema: Schema, where: Where) -> Made:
    node = compiler.referred(target, where)

    def check(value: Json, run: _Run) -> Found:
        # a schema that refers to itself with the same value says nothing by it; what doubles is looked at once
        known = id(node), id(value)
        if (faults := run.known.get(known)) is None:
            run.known[known] = _NONE
            faults = run.known[known] = node.visit(value, run)
        return [
            Mismatch(fault.keyword, fault.say, [*fault.outward], [*fault.outward_schema, "$ref"]) for fault in faults
        ]

    return [(_ALL, check)]


def _all_of(compiler: _Compiler, schemas: Json, schema: Schema, where: Where) -> Made:
    nodes = compiler.listed(schemas, where)

    def check(value: Json, run: _Run) -> Found:
        faults: Found = _NONE
        for n, node in enumerate(nodes):
            if more := node.visit(value, run):
                faults = [*faults, *_within(more, (), n, "allOf")]
                if len(faults) >= _MOST_FAULTS:
                    break
        return faults

    return [(_ALL, check)]


def _any_of(compiler: _Compiler, schemas: Json, schema: Schema, where: Where) -> Made:
    nodes = compiler.listed(schemas, where)

    def check(value: Json, run: _Run) -> Found:
        branches: list[Found] = []
        for n, node in enumerate(nodes):
            if not (more := node.visit(value, run)):
                return _NONE
            branches.append(_within(more, (), n, "anyOf"))
        return _no_alternative("anyOf", value, branches)

    return [(_ALL, check)]


def _one_of(compiler: _Compiler, schemas: Json, schema: Schema, where: Where) -> Made:
    nodes = compiler.listed(schemas, where)

    def check(value: Json, run: _Run) -> Found:
        branches: list[Found] = []
        right = False
        for n, node in enumerate(nodes):
            if more := node.visit(value, run):
                branches.append(_within(more, (), n, "oneOf"))
            elif right:
                return _fault("oneOf", lambda: f"{shown(value)} is valid under more than one of the given schemas")
            else:
                right = True
        return _NONE if right else _no_alternative("oneOf", value, branches)

    return [(_ALL, check)]


def _no_alternative(keyword: str, value: Json, branches: list[Found]) -> Found:
    def say() -> str:
        return f"{shown(value)} is not valid under any of the given schemas"

    return [Mismatch(keyword, say, [], [keyword], tuple(branches))]


def _not(compiler: _Compiler, inner: Json, schema: Schema, where: Where) -> Made:
    node = compiler.node(inner, where)

    def check(value: Json, run: _Run) -> Found:
        if node.visit(value, run):
            return _NONE
        return _fault("not", lambda: f"{shown(value)} should not be valid under {shown(inner)}")

    return [(_ALL, check)]


def _if(compiler: _Compiler, if_schema: Json, schema: Schema, where: Where) -> Made:
    condition, outer = compiler.node(if_schema, where), where[:-1]
    then, other = (compiler.node(schema.get(name, True), (*outer, name)) for name in ("then", "else"))

    def check(value: Json, run: _Run) -> Found:
        if condition.visit(value, run):
            return _within(other.visit(value, run), (), "else", "if")
        return _within(then.visit(value, run), (), "then", "if")

    return [(_ALL, check)]


def _schemas_only(compiler: _Compiler, schemas: Json, schema: Schema, where: Where) -> Made:
    """Schemas that count only where others refer to them; what cannot be enforced in them is refused all the same."""
    compiler.named(schemas, where)
    return ()


def _schema_only(compiler: _Compiler, inner: Json, schema: Schema, where: Where) -> Made:
    compiler.node(inner, where)
    return ()


# numbers


def _bound(keyword: str, breaks: Callable[[Json, Json], bool], words: str) -> Maker:
    def make(compiler: _Compiler, limit: Json, schema: Schema, where: Where) -> Made:
        def check(value: Json, run: _Run) -> Found:
            if not breaks(value, limit):
                return _NONE
            return _fault(keyword, lambda: f"{shown(value)} {words} {shown(limit)}")

        return [(_NUMBERS, check)]

    return make


# texts, lists and objects of a size


def _size(keyword: str, kind: type, *, most: bool) -> Maker:
    what = "properties" if kind is dict else ""

    def make(compiler: _Compiler, limit: Json, schema: Schema, where: Where) -> Made:
        def say(value: Json) -> str:
            if what:
                return f"{shown(value)} {'has too many' if most else 'does not have enough'} properties"
            if most:
                return f"{shown(value)} is {'expected to be empty' if not limit else 'too long'}"
            return f"{shown(value)} {'should be non-empty' if limit == 1 else 'is too short'}"

        def check(value: Json, run: _Run) -> Found:
            if len(value) <= limit if most else len(value) >= limit:
                return _NONE
            return _fault(keyword, partial(say, value))

        return [((kind,), check)]

    return make


def _pattern(compiler: _Compiler, text: Json, schema: Schema, where: Where) -> Made:
    compiled = compiler.pattern(text, where, "pattern")

    def check(value: Json, run: _Run) -> Found:
        run.spend(compiled.cost(value))
        if compiled.fits(value):
            return _NONE
        return _fault("pattern", lambda: f"{shown(value)} does not match {text!r}")

    return [((str,), check)]


# lists


def _items(compiler: _Compiler, items: Json, schema: Schema, where: Where) -> Made:
    if isinstance(items, list):  # as before draft 2020-12
        first = _prefix_items(compiler, items, schema, where)
        if "additionalItems" not in schema:
            return first
        rest = compiler.node(schema["additionalItems"], (*where[:-1], "additionalItems"))
        return [*first, ((list,), _each_item(rest, len(cast("list[Json]", items)), "additionalItems"))]
    prefix = schema.get("prefixItems")
    begin = len(cast("list[Json]", prefix)) if isinstance(prefix, list) else 0
    return [((list,), _each_item(compiler.node(items, where), begin, "items"))]


def _each_item(node: _Node, begin: int, keyword: str) -> Check:
    def check(value: Json, run: _Run) -> Found:
        faults: Found = _NONE
        for n in range(begin, len(value)):
            if more := node.visit(value[n], run):
                faults = [*faults, *_within(more, (n,), keyword)]
                if len(faults) >= _MOST_FAULTS:
                    break
        return faults

    return check


def _prefix_items(compiler: _Compiler, schemas: Json, schema: Schema, where: Where) -> Made:
    nodes, keyword = compiler.listed(schemas, where), where[-1]

    def check(value: Json, run: _Run) -> Found:
        faults: Found = _NONE
        for n, (node, item) in enumerate(zip(nodes, value, strict=False)):
            if more := node.visit(item, run):
                faults = [*faults, *_within(more, (n,), n, keyword)]
        return faults

    return [((list,), check)]


def _contains(compiler: _Compiler, inner: Json, schema: Schema, where: Where) -> Made:
    node = compiler.node(inner, where)
    least, most = schema.get("minContains", 1), schema.get("maxContains")

    def check(value: Json, run: _Run) -> Found:
        right = 0
        for item in value:
            right += not node.visit(item, run)
            if most is not None and right > most:
                return _fault("contains", lambda: f"Too many items match the given schema (expected at most {most})")
            if most is None and right >= least:
                return _NONE
        if right >= least:
            return _NONE
        return _fault("contains", lambda: f"{shown(value)} does not contain items matching the given schema")

    return [((list,), check)]


def _unique_items(compiler: _Compiler, is_on: Json, schema: Schema, where: Where) -> Made:
    def check(value: Json, run: _Run) -> Found:
        if len({key(item, run) for item in value}) == len(value):
            return _NONE
        return _fault("uniqueItems", lambda: f"{shown(value)} has non-unique elements")

    return [((list,), check)] if is_on else ()


# objects


def _properties(compiler: _Compiler, schemas: Json, schema: Schema, where: Where) -> Made:
    nodes = compiler.named(schemas, where)

    def check(value: Json, run: _Run) -> Found:
        faults: Found = _NONE
        run.left -= len(nodes) // _NAMES_OF_LOOK
        for name, node in nodes.items():
            if name in value and (more := node.visit(value[name], run)):
                faults = [*faults, *_within(more, (name,), name, "properties")]
        return faults

    return [((dict,), check)]


def _pattern_properties(compiler: _Compiler, schemas: Json, schema: Schema, where: Where) -> Made:
    nodes = compiler.named(schemas, where)
    patterns = {text: compiler.pattern(text, (*where, text), "patternProperties") for text in nodes}

    def check(value: Json, run: _Run) -> Found:
        faults: Found = _NONE
        for text, compiled in patterns.items():
            for name, part in value.items():
                run.spend(compiled.cost(name))
                if compiled.fits(name) and (more := nodes[text].visit(part, run)):
                    faults = [*faults, *_within(more, (name,), text, "patternProperties")]
        return faults

    return [((dict,), check)]


def _additional_properties(compiler: _Compiler, inner: Json, schema: Schema, where: Where) -> Made:
    node = compiler.node(inner, where)
    named, others = schema.get("properties"), schema.get("patternProperties")
    known = frozenset(cast("Schema", named)) if isinstance(named, dict) else frozenset[str]()
    patterns = [
        compiler.pattern(text, (*where[:-1], "patternProperties", text), "patternProperties")
        for text in (cast("Schema", others) if isinstance(others, dict) else ())
    ]

    def is_known(name: str, run: _Run) -> bool:
        if name in known:
            return True
        for compiled in patterns:
            run.spend(compiled.cost(name))
            if compiled.fits(name):
                return True
        return False

    def check(value: Json, run: _Run) -> Found:
        run.left -= len(value) // _NAMES_OF_LOOK
        extra = [name for name in value if not is_known(name, run)]
        if inner is False and extra:
            return _fault("additionalProperties", lambda: _unexpected(extra))
        faults: Found = _NONE
        for name in extra:
            if more := node.visit(value[name], run):
                faults = [*faults, *_within(more, (name,), "additionalProperties")]
                if len(faults) >= _MOST_FAULTS:
                    break
        return faults

    return [((dict,), check)] if inner is not True else ()


def _unexpected(names: Sequence[str]) -> str:
    listing = ", ".join(map(shown, names[:_SHOWN_PARTS]))
    return f"Additional properties are not allowed ({listing} {'was' if len(names) == 1 else 'were'} unexpected)"


def _property_names(compiler: _Compiler, inner: Json, schema: Schema, where: Where) -> Made:
    node = compiler.node(inner, where)

    def check(value: Json, run: _Run) -> Found:
        faults: Found = _NONE
        for name in value:
            if more := node.visit(name, run):
                faults = [*faults, *_within(more, (), "propertyNames")]
        return faults

    return [((dict,), check)]


def _required(compiler: _Compiler, names: Json, schema: Schema, where: Where) -> Made:
    def check(value: Json, run: _Run) -> Found:
        run.left -= len(names) // _NAMES_OF_LOOK
        faults: Found = _NONE
        for name in names:
            if name not in value:
                faults = [*faults, *_fault("required", partial("{!r} is a required property".format, name))]
                if len(faults) >= _MOST_FAULTS:
                    break
        return faults

    return [((dict,), check)]


def _dependent_required(compiler: _Compiler, names: Json, schema: Schema, where: Where) -> Made:
    def check(value: Json, run: _Run) -> Found:
        faults: Found = _NONE
        for name, needed in names.items():
            run.left -= 1 + len(needed) // _NAMES_OF_LOOK
            if name in value and (missing := [n for n in needed if n not in value]):
                say = partial("{!r} is a dependency of {!r}".format, missing[0], name)
                faults = [*faults, *_fault("dependentRequired", say)]
        return faults

    return [((dict,), check)]


def _dependent_schemas(compiler: _Compiler, schemas: Json, schema: Schema, where: Where) -> Made:
    nodes = compiler.named(schemas, where)

    def check(value: Json, run: _Run) -> Found:
        faults: Found = _NONE
        run.left -= len(nodes) // _NAMES_OF_LOOK
        for name, node in nodes.items():
            if name in value and (more := node.visit(value, run)):
                faults = [*faults, *_within(more, (), name, "dependentSchemas")]
        return faults

    return [((dict,), check)]


def _dependencies(compiler: _Compiler, dependencies: Json, schema: Schema, where: Where) -> Made:
    """As before draft 2019-09; later drafts only keep its form."""
    parts = cast("dict[str, Json]", dependencies)
    names = {name: parts[name] for name in parts if isinstance(parts[name], list)}
    schemas = {name: parts[name] for name in parts if name not in names}
    checks = (
        *_dependent_required(compiler, names, schema, where),
        *_dependent_schemas(compiler, schemas, schema, where),
    )
    return checks if compiler.early else ()


_KEYWORDS: Final[Mapping[str, Maker]] = {
    "$defs": _schemas_only,
    "definitions": _schemas_only,
    "$ref": _ref,
    "type": _type,
    "enum": _enum,
    "const": _const,
    "allOf": _all_of,
    "anyOf": _any_of,
    "oneOf": _one_of,
    "not": _not,
    "if": _if,
    "then": _schema_only,
    "else": _schema_only,
    "contentSchema": _schema_only,
    "minimum": _bound("minimum", lambda value, limit: value < limit, "is less than the minimum of"),
    "maximum": _bound("maximum", lambda value, limit: value > limit, "is greater than the maximum of"),
    "exclusiveMinimum": _bound(
        "exclusiveMinimum", lambda value, limit: value <= limit, "is less than or equal to the minimum of"
    ),
    "exclusiveMaximum": _bound(
        "exclusiveMaximum", lambda value, limit: value >= limit, "is greater than or equal to the maximum of"
    ),
    "multipleOf": _bound("multipleOf", lambda value, of: not is_multiple(value, of), "is not a multiple of"),
    "minLength": _size("minLength", str, most=False),
    "maxLength": _size("maxLength", str, most=True),
    "minItems": _size("minItems", list, most=False),
    "maxItems": _size("maxItems", list, most=True),
    "minProperties": _size("minProperties", dict, most=False),
    "maxProperties": _size("maxProperties", dict, most=True),
    "pattern": _pattern,
    "items": _items,
    "prefixItems": _prefix_items,
    "contains": _contains,
    "uniqueItems": _unique_items,
    "properties": _properties,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    "propertyNames": _property_names,
    "required": _required,
    "dependentRequired": _dependent_required,
    "dependentSchemas": _dependent_schemas,
    "dependencies": _dependencies,
}


# the form of each keyword's value, as the metaschema of draft 2020-12 has it


def _is_text(value: Json) -> bool:
    return isinstance(value, str)


def _is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Json) -> bool:
    return _is_number(value) and value >= 0 and (isinstance(value, int) or value.is_integer())


def _is_flag(value: Json) -> bool:
    return isinstance(value, bool)


def _is_list(value: Json) -> bool:
    return isinstance(value, list)


def _is_object(value: Json) -> bool:
    return isinstance(value, dict)


def _is_some(value: Json) -> bool:
    return isinstance(value, list) and value != []


def _are_names(value: Json) -> bool:
    names = cast("list[Json]", value) if isinstance(value, list) else [None]
    return all(isinstance(name, str) for name in names) and len(set(names)) == len(names)


def _is_type(value: Json) -> bool:
    if isinstance(value, str):
        return value in _TYPES
    return bool(value) and _are_names(value) and all(name in _TYPES for name in value)


def _names_by_name(value: Json) -> bool:
    return isinstance(value, dict) and all(map(_are_names, cast("dict[str, Json]", value).values()))


def _is_schema(value: Json) -> bool:
    return isinstance(value, dict | bool)


def _are_dependencies(value: Json) -> bool:
    parts = cast("dict[str, Json]", value).values() if isinstance(value, dict) else [None]
    return all(_is_schema(part) or _are_names(part) for part in parts)


def _is_id(value: Json) -> bool:
    return isinstance(value, str) and "#" not in value[:-1]


def _is_anchor(value: Json) -> bool:
    return isinstance(value, str) and value[:1].isascii() and (value[:1].isalpha() or value[:1] == "_")


_FORMS: Final[Mapping[str, Callable[[Json], bool]]] = {
    **dict.fromkeys(("$comment", "$schema", "$ref", "$dynamicRef", "$recursiveRef", "title", "description"), _is_text),
    **dict.fromkeys(("format", "pattern", "contentEncoding", "contentMediaType"), _is_text),
    **dict.fromkeys(("uniqueItems", "deprecated", "readOnly", "writeOnly"), _is_flag),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _is_number),
    "multipleOf": lambda value: _is_number(value) and value > 0,
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), _is_count),
    **dict.fromkeys(("minContains", "maxContains"), _is_count),
    **dict.fromkeys(("enum", "examples"), _is_list),
    **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), _is_some),
    **dict.fromkeys(("$defs", "definitions", "properties", "patternProperties", "dependentSchemas"), _is_object),
    "$vocabulary": _is_object,
    "required": _are_names,
    "type": _is_type,
    "dependentRequired": _names_by_name,
    "dependencies": _are_dependencies,
    "items": _is_schema,
    "$id": _is_id,
    **dict.fromkeys(("$anchor", "$dynamicAnchor", "$recursiveAnchor"), _is_anchor),
}


def _has_form(keyword: str, value: Json, *, early: bool) -> bool:
    if keyword == "items" and early and isinstance(value, list):
        return True
    form = _FORMS.get(keyword)
    return form is None or form(value)


def _first_fault(keyword: str, value: Json, place: Where) -> Where:
    """Where in a keyword's value it is wrong."""
    if keyword in ("required", "type") and isinstance(value, list):
        for n, name in enumerate(cast("list[Json]", value)):
            if not isinstance(name, str):
                return (*place, str(n))
    return place
