"""What a step's attempts at a model used: `metadata.budget` of its row (protocol §15).

The ledger books it with the step's commit.
"""

from pydantic import Field

from turnstile.schema.base import Tolerant


class AttemptUse(Tolerant):
    """What one attempt used; 0 if it reached nobody, null where nobody knows: then all that it reserved is booked."""

    attempt: int
    """As it was reserved: the head's `step_attempt`; of a request for a summary that, negative."""
    tokens: int | None = Field(default=None, ge=0)
    cost: int | None = Field(default=None, ge=0)
    """In micro-dollars, rounded up."""


class StepBudget(Tolerant):
    """What a step of a budgeted turn used."""

    uses: tuple[AttemptUse, ...] = ()
