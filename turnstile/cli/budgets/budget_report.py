"""A budget on paper: a line, and all of it."""

from datetime import datetime
from decimal import Decimal

from turnstile.cli.output import Output, clock
from turnstile.schema.budgets.views import BudgetView, CostSums, ProjectLimits, TokenSums, TurnSums


def budget_line(view: BudgetView) -> str:
    """What of it is spent, in a line: `1,200 of 5,000 tokens (300 reserved), $0.0120 of $1`."""
    parts = [
        _of(view.tokens.spent, view.tokens.max, view.tokens.reserved, "tokens"),
        _of_dollars(view.cost_usd.spent, view.cost_usd.max, view.cost_usd.reserved),
        _of(view.turns.spent, view.turns.max, view.turns.reserved, "turns"),
        "" if view.until is None else f"until {clock(view.until)}",
    ]
    return ", ".join(filter(None, parts)) or "no limit"


def print_budget(out: Output, view: BudgetView) -> None:
    """Print all of it for people."""
    out.facts(
        f"budget {view.budget_id}",
        {
            "of": _whose(view),
            "status": _status(view),
            "tokens": _sums(view.tokens),
            "cost": _dollar_sums(view.cost_usd),
            "turns": _sums(view.turns),
            "until": None if view.until is None else clock(view.until),
            "warns at": f"{view.warn_percent} %" + (f", passed {clock(view.warned_at)}" if view.warned_at else ""),
            "taken from": ", ".join(view.taken_from),
            "changed by": view.updated_by,
        },
    )


def limits_line(limits: ProjectLimits) -> str:
    """What the project may spend in a day or month."""
    parts = [
        "" if limits.max_tokens is None else f"{limits.max_tokens:,} tokens",
        "" if limits.max_cost_usd is None else dollars(limits.max_cost_usd),
        "" if limits.max_turns is None else f"{limits.max_turns:,} turns",
    ]
    return f"at most {', '.join(filter(None, parts))} a {limits.period} (UTC)"


def dollars(amount: Decimal) -> str:
    """An amount as `$1` or `$0.012345`, with all digits that it has."""
    digits = f"{amount.normalize():,f}"
    return f"${digits}"


def _whose(view: BudgetView) -> str:
    return f"turn {view.agent_turn_id} in {view.channel_id}" if view.agent_turn_id else f"the project's {view.kind}"


def _status(view: BudgetView) -> str:
    moments: dict[str, datetime | None] = {"ended": view.ended_at, "closed": view.closed_at}
    when = moments.get(view.status)
    return view.status if when is None else f"{view.status} {clock(when)}"


def _of(spent: int, most: int | None, reserved: int, unit: str) -> str:
    if most is None:
        return ""
    return f"{spent:,} of {most:,} {unit}" + (f" ({reserved:,} reserved)" if reserved else "")


def _of_dollars(spent: Decimal, most: Decimal | None, reserved: Decimal) -> str:
    if most is None:
        return ""
    return f"{dollars(spent)} of {dollars(most)}" + (f" ({dollars(reserved)} reserved)" if reserved else "")


def _sums(sums: TurnSums) -> str:
    unsure = (sums.unsettled, sums.beyond) if isinstance(sums, TokenSums) else (0, 0)
    numbers = (sums.max, sums.spent, sums.reserved, sums.left, sums.returned, *unsure)
    return _told(tuple(None if number is None else f"{number:,}" for number in numbers))


def _dollar_sums(sums: CostSums) -> str:
    numbers = (sums.max, sums.spent, sums.reserved, sums.left, sums.returned, sums.unsettled, sums.beyond)
    return _told(tuple(None if number is None else dollars(number) for number in numbers))


def _told(parts: tuple[str | None, ...]) -> str:
    """`most` of it, what is spent and left, and what else there is that is not nothing."""
    most, spent, reserved, left, returned, unsettled, beyond = parts
    if most is None:
        return ""
    others = {
        "reserved": reserved,
        "reserved and charged in full, as the use is unknown": unsettled,
        "beyond what was reserved": beyond,
        "returned": returned,
    }
    rest = [f"{value} {name}" for name, value in others.items() if value not in ("0", "$0")]
    return ", ".join((f"{spent} of {most} spent, {left} left", *rest))
