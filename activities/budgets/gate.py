"""Lets a step's attempts at a model through its turn's budget: `BudgetGate` (protocol §15).

Before every attempt it reserves the request's input and the most that the model may answer, in the ledger: one round
trip, without a provider. It raises `BudgetExhausted` where that does not fit, and bounds everything that the step waits
for by the moment at which the turn's time is over. A turn that nothing limits has no gate.

`step_budget` says what the attempts used, as the ledger books it (`metadata.budget.uses`). What nobody can know is null
and booked whole: an attempt that was lost or cancelled, or that failed after the provider had begun. An attempt that
the provider refused before any output used nothing.
"""

import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal

from turnstile.ledger.budgets.attempts import Reservation, SoftLimit, reserve_attempt
from turnstile.ledger.queries import Connection
from turnstile.rules.model_files import file_tokens
from turnstile.runtime.ports import Model, ModelRequest
from turnstile.runtime.telemetry import SILENT, Metric, Telemetry
from turnstile.schema.base import JsonObject
from turnstile.schema.budgets.lacks import BUDGET_EXHAUSTED, UNPRICED_MODEL, BudgetLack
from turnstile.schema.budgets.plans import Dimension
from turnstile.schema.budgets.prices import DEFAULT_MAX_TOKENS, ModelPrice, ceiled, is_count
from turnstile.schema.budgets.uses import AttemptUse, StepBudget
from turnstile.schema.errors import ModelError
from turnstile.schema.people.interrupts import Hold
from turnstile.schema.profiles import LlmConfig
from turnstile.schema.turns import TurnRef

log = logging.getLogger(__name__)

_BYTES_PER_TOKEN = 3
"""Less than of most texts, so that an estimate is rather too large."""

Write = Callable[[Callable[[Connection], Awaitable[Reservation]]], Awaitable[Reservation]]


class BudgetExhausted(ModelError):
    """The next request to a model does not fit into the turn's budget: the turn ends with what there is."""

    def __init__(self, lack: BudgetLack) -> None:
        super().__init__(BUDGET_EXHAUSTED, str(lack), retryable=False)
        self.lack = lack


@dataclass(slots=True)
class BudgetGate:
    """The gate of one step. `expires` is by `time.monotonic`; `write` runs the reservation in the ledger."""

    turn: TurnRef
    step: int
    model: Model
    write: Write
    warn: Callable[[str, SoftLimit], Awaitable[None]]
    """Publishes that a request to this model passed a soft limit."""
    until: datetime | None = None
    expires: float | None = None
    max_tokens: int = DEFAULT_MAX_TOKENS
    telemetry: Telemetry = SILENT
    prices: dict[str, ModelPrice | None] = field(default_factory=dict[str, ModelPrice | None])

    def seconds_left(self) -> float | None:
        """How long the turn may still take, 0 at least; None if its time is not limited."""
        return None if self.expires is None else max(0.0, self.expires - time.monotonic())

    def within(self, seconds: float) -> float:
        """So many seconds, or as many as the turn may still take."""
        left = self.seconds_left()
        return seconds if left is None else min(seconds, left)

    def check_time(self) -> None:
        """Raise `BudgetExhausted` if the turn's time is over."""
        if self.seconds_left() == 0:
            self._count("exhausted", Dimension.SECONDS)
            raise BudgetExhausted(BudgetLack.of(Dimension.SECONDS, None, self.until))

    def bounded(self, holds: Sequence[Hold | None]) -> Sequence[Hold | None]:
        """The questions to people, which expire when the turn's time is over at the latest."""
        if self.expires is None:
            return holds
        return [hold and hold.model_copy(update=self._bound(hold)) for hold in holds]

    def _bound(self, hold: Hold) -> dict[str, float]:
        return {"expires_after_seconds": max(self.within(hold.expires_after_seconds), 0.001)}

    async def tokens(self, request: ModelRequest) -> int:
        """The tokens of the request: as its model counts, a tenth more where that is an estimate, else by the size."""
        try:
            count = await self.model.count(request)
        except ModelError as error:
            log.info("%s: the tokens of a request are estimated by its size: %s", request.config.model, error.code)
            return estimated(request)
        return count.tokens if count.exact else -(-count.tokens * 11 // 10)

    async def admit(self, request: ModelRequest, tokens: int, *, summary: bool = False) -> ModelRequest:
        """Reserve for this attempt; returns the request with its `max_tokens`, and no more time than there is.

        Raises `BudgetExhausted`, `ModelError` (`unpriced_model`), or `StaleTurn` if the step's gate is closed.
        """
        self.check_time()
        model, most = request.config.model, answer_tokens(request.config, self.max_tokens)
        attempt = attempt_key(request.attempt, summary=summary)
        grant = await self.write(
            lambda conn: reserve_attempt(
                conn, self.turn, self.step, attempt, model, input_tokens=tokens, max_tokens=most
            )
        )
        self._count(grant.verdict, grant.dimension)
        match grant.verdict:
            case "exhausted":
                figures = {"had": grant.had, "spent": grant.spent, "reserved": grant.reserved, "wanted": grant.wanted}
                lack = BudgetLack.of(grant.dimension or Dimension.TOKENS, grant.budget_id, grant.until, **figures)
                raise BudgetExhausted(lack)
            case "unpriced":
                says = f"the turn's cost is limited, and {model} has no price: set [model.prices.{json.dumps(model)}]"
                raise ModelError(UNPRICED_MODEL, says, retryable=False)
            case "reserved":
                self.prices[model] = grant.price
        if grant.warned is not None:
            self.telemetry.meter.count(Metric.BUDGET_WARNINGS, dimension=grant.warned.dimension)
            await self.warn(model, grant.warned)
        return replace(
            request,
            config=_with_limit(request.config, most, grant.price),
            timeout_seconds=max(self.within(request.timeout_seconds), 0.001),
        )

    def used(self, records: Sequence[JsonObject]) -> StepBudget:
        """What these attempts of the step used."""
        return step_budget(records, self.prices)

    def _count(self, verdict: str, dimension: Dimension | None) -> None:
        self.telemetry.meter.count(Metric.BUDGET_RESERVATIONS, verdict=verdict, dimension=dimension or "none")


def answer_tokens(config: LlmConfig, default: int) -> int:
    """The most tokens of an answer to a request of this configuration."""
    if (limit := _given_limit(config)) is not None:
        return limit
    thinking = config.provider_params.get("thinking")
    thoughts = thinking.get("budget_tokens") if isinstance(thinking, dict) else None
    # the limit of an answer is over its thoughts too, and must be larger
    return default + (thoughts if isinstance(thoughts, int) and thoughts > 0 else 0)


def _given_limit(config: LlmConfig) -> int | None:
    params_limit = config.provider_params.get("max_completion_tokens")
    limits = [n for n in (config.max_tokens, params_limit) if isinstance(n, int) and n > 0]
    return max(limits, default=None)


def _with_limit(config: LlmConfig, most: int, price: ModelPrice | None) -> LlmConfig:
    """The configuration with a limit of the answer that its model can have, unless it has one."""
    if _given_limit(config) is not None:
        return config
    able = None if price is None else price.max_output_tokens
    return config.model_copy(update={"max_tokens": most if able is None else min(most, able)})


def estimated(request: ModelRequest) -> int:
    """The tokens of a request by the size of its messages and tools."""
    contents = [message.model_dump(mode="json", exclude={"files"}) for message in request.messages]
    text = json.dumps([contents, request.tools], ensure_ascii=False)
    files = file_tokens(request.messages, request.files, request.config.model)
    return files - (-len(text.encode("utf-8", "surrogatepass")) // _BYTES_PER_TOKEN)


NOT_SENT = "not_sent"
"""`error_code` of an attempt that reserved, or may have, and was given up before it was sent."""
_REFUSED = frozenset(
    {
        *(NOT_SENT, "rate_limited", "model_overloaded", "quota_exhausted", "auth_failed", "model_unknown"),
        *("model_bad_request", "model_params_unsupported", "context_window_exceeded", "model_request_invalid"),
        *("model_key_missing", "model_library_missing", "model_weights_missing"),
    }
)
"""Codes of attempts that cost nothing if no output came."""

Prices = Mapping[str, ModelPrice | None]
"""The price of each model that was reserved for; None where it has none."""


def attempt_key(number: int, *, summary: bool) -> int:
    """The number under which an attempt is reserved: summaries have negative ones, since they count from the same."""
    return -number if summary else number


def step_budget(records: Sequence[JsonObject], prices: Prices) -> StepBudget:
    """What these attempts used."""
    uses = (attempt_use(record, prices) for record in records)
    return StepBudget(uses=tuple(use for use in uses if use is not None))


def attempt_use(record: JsonObject, prices: Prices) -> AttemptUse | None:
    """What this attempt used; None for a record without a number, which others wrote."""
    number = record.get("attempt")
    if not isinstance(number, int):
        return None
    key = attempt_key(number, summary=record.get("summary") is True)
    if record.get("error_code") in _REFUSED and record.get("first_token_ms") is None:
        return AttemptUse(attempt=key, tokens=0, cost=0)
    usage = record.get("usage")
    counts = {name: count for name, count in (usage if isinstance(usage, dict) else {}).items() if is_count(count)}
    return AttemptUse(attempt=key, tokens=_tokens(counts), cost=_cost(record, counts, prices))


def _tokens(counts: Mapping[str, object]) -> int | None:
    total, prompt, completion = (counts.get(f"{name}_tokens") for name in ("total", "prompt", "completion"))
    if isinstance(total, int):
        return total
    return prompt + completion if isinstance(prompt, int) and isinstance(completion, int) else None


def _cost(record: JsonObject, counts: Mapping[str, object], prices: Prices) -> int | None:
    """In micro-dollars: as the provider says, else by the price; 0 where there is none, since nothing was reserved."""
    cost = record.get("response_cost")
    if isinstance(cost, int | float) and cost >= 0:
        return ceiled(Decimal(str(cost)) * 1_000_000)
    model = record.get("model")
    if not isinstance(model, str) or model not in prices or _tokens(counts) is None:
        return None
    price = prices[model]
    return 0 if price is None else price.cost_of(counts)
