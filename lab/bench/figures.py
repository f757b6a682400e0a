"""Measured figures with units and goals, and their arithmetic. Pure.

A figure is a ratio, a count or a time; a figure with a goal knows whether it is met. Percentiles are measured values
(nearest rank), never interpolated.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from pydantic import Field

from turnstile.schema.base import JsonObject, Strict


class Goal(Strict):
    """A bound for a figure."""

    relation: Literal["<=", ">="]
    bound: float

    def met(self, value: float) -> bool:
        """Whether the value is within the bound; NaN never is."""
        return value <= self.bound if self.relation == "<=" else value >= self.bound


class Figure(Strict):
    """One measured value."""

    name: str
    value: float
    unit: str = ""
    goal: Goal | None = None

    @property
    def met(self) -> bool | None:
        """Whether its goal is met; None where there is no goal."""
        return None if self.goal is None else self.goal.met(self.value)


class Result(Strict):
    """The result of a scenario; `details` are for the JSON file and the plot."""

    scenario: str
    figures: tuple[Figure, ...]
    details: JsonObject = Field(default_factory=dict)

    def value(self, name: str) -> float | None:
        """A figure's value by its name."""
        return next((figure.value for figure in self.figures if figure.name == name), None)


def at_most(bound: float) -> Goal:
    """The goal that a value is at most `bound`."""
    return Goal(relation="<=", bound=bound)


def at_least(bound: float) -> Goal:
    """The goal that a value is at least `bound`."""
    return Goal(relation=">=", bound=bound)


def held(figures: Iterable[Figure], goals: Mapping[str, Goal]) -> list[Figure]:
    """The figures, each with the goal of its name, if there is one."""
    return [figure.model_copy(update={"goal": goals.get(figure.name, figure.goal)}) for figure in figures]


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that `share` (0 to 1) of all do not exceed; NaN for no values."""
    if not values:
        return math.nan
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def median(values: Iterable[float]) -> float:
    """The median of the values that are not NaN; NaN if there are none."""
    known = [value for value in values if not math.isnan(value)]
    return statistics.median(known) if known else math.nan


def ratio(value: float, yardstick: float) -> float:
    """The value divided by the yardstick; NaN if the yardstick is 0."""
    return value / yardstick if yardstick else math.nan


def spread(name: str, values: Sequence[float]) -> list[Figure]:
    """p50, p95 and p99 of times in milliseconds."""
    return [
        Figure(name=f"{name} p{round(share * 100)}", value=percentile(values, share), unit="ms")
        for share in (0.5, 0.95, 0.99)
    ]


def medians(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The median of each named value over the rounds that have it."""
    names = dict.fromkeys(name for r in rounds for name in r)
    return {name: median(r[name] for r in rounds if name in r) for name in names}


def slope(small: tuple[float, float], big: tuple[float, float]) -> float:
    """The slope between two points (x, y)."""
    return (big[1] - small[1]) / (big[0] - small[0])
