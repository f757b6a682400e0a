"""A step of a turn: what it reads as it begins, and what its commit writes (protocol §7). No I/O."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from turnstile.schema.base import JsonObject, Tolerant
from turnstile.schema.budgets.plans import TurnBudget
from turnstile.schema.cards import Card
from turnstile.schema.ids import BoxId, CardId, ToolCallId
from turnstile.schema.people.approvals import InterruptRule
from turnstile.schema.people.interrupts import Hold
from turnstile.schema.profiles import StoredConfig
from turnstile.schema.states import HeadStatus, MessageType, StepStatus
from turnstile.schema.step_metadata import StepMetadata, SuspendMetadata
from turnstile.schema.tools import ToolCommand
from turnstile.schema.wire.headers import ContextHeaders
from turnstile.schema.wire.inbox import RerunOf


class OpenedBox(Tolerant):
    """How a box was read: its version, after which position, and up to which."""

    version: str
    known: int
    upto: int | None


class ReportedCall(Tolerant):
    """A call whose report was applied; `after_execution` is the report's, None if the report has none."""

    tool_call_id: ToolCallId
    tool_name: str
    tool_result_card_id: CardId
    after_execution: str | None
    reported_at: datetime | None = None
    """When the ledger got its result."""


class StepHead(Tolerant):
    """The head at the beginning of a step."""

    message_type: MessageType = MessageType.TURN
    status: HeadStatus
    step_count: int
    step_attempt: int
    model_failures: int
    output_position: int
    trace_id: str
    parent_step_id: str | None
    updated_at: datetime
    """When this attempt of the step began."""
    started_at: datetime
    enqueued_at: datetime
    due_at: datetime
    """When the turn was leased, or when its row was last made due again."""
    suspended_at: datetime | None = None
    """When the turn was suspended, if the step before this one sent calls."""
    context_headers: ContextHeaders
    runtime_config: StoredConfig
    profile_box_id: BoxId
    context_box_id: BoxId
    output_box_id: BoxId
    tools: list[JsonObject]
    """The project's `resource.tools` rows, raw; only for a turn's first step."""
    turn_config: JsonObject | None
    """The configuration that the first step pinned; None until that step is committed."""
    boxes: tuple[OpenedBox, OpenedBox, OpenedBox]
    """How the profile, context and output boxes were read."""
    answered: list[ReportedCall]
    """The calls of the last committed step that were applied or expired, in no order."""
    rerun: RerunOf | None = None
    """The turn that this one runs again."""
    budget: TurnBudget | None = None
    """What limits the turn; None: nothing."""
    guards: dict[str, InterruptRule] | None = None
    """The rules of the agent's own profile, where the request names another one: they hold beside that one's."""


@dataclass(frozen=True, slots=True)
class BegunStep:
    """A step that has begun: its head, and the cards of the three boxes in order, without expired and deleted ones."""

    head: StepHead
    profile: tuple[Card, ...]
    context: tuple[Card, ...]
    output: tuple[Card, ...]
    context_position: int = 0
    """The last position of the context box that was read: the turn's first step pins it."""
    steers: tuple[Card, ...] = ()
    """What was said to the turn, which this step asks the model with; every attempt of it has the same (§6, steer)."""


@dataclass(frozen=True, slots=True)
class MadeBox:
    """The box that a step makes of its output box, where it compacts the memory (protocol §7.3).

    It has the step's `memory.summary` and `memory.cut`, the cards of the old box from `first_kept` on, with `carried`
    before them, and the step's other cards. `first_kept` may be one of these: then nothing of the old box is kept.
    """

    box: BoxId
    first_kept: CardId
    carried: Sequence[CardId] = ()
    """Cards of the old box that are kept although they stand before: earlier cuts of the turn in hand, for instance."""
    within: Sequence[CardId] = ()
    """Cards of the step that stand right before `first_kept`: the summary of steps of the turn in hand."""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """What the commit of a step writes; a repeated commit returns the recorded `metadata`."""

    step: int
    metadata: StepMetadata
    cards: Sequence[Card]
    tool_call_ids: Sequence[ToolCallId]
    started_at: datetime
    """When it began, by the ledger's clock: `StepHead.updated_at`."""
    status: StepStatus = StepStatus.COMPLETED
    wait_seconds: float = 0.0
    """How long the turn waits for each of `calls`, unless `call_waits` says it of each."""
    call_waits: Sequence[float] = ()
    holds: Sequence[Hold | None] = ()
    """Of each of `calls`, the question that a person must answer first; empty if there is none."""
    kept: Sequence[CardId] = ()
    """The cards that exist already: they enter the output box and are not made again."""
    steers: Sequence[CardId] = ()
    """Those of the cards that are steers, which are in the output box: they are applied with this commit."""
    steered: bool = False
    """Whether the turn would have ended with this step, had no steer waited: then the next step takes all that wait."""
    made_box: MadeBox | None = None
    """With a `memory.cut` among the cards: the box in which the turn and its conversation go on."""

    @property
    def new_cards(self) -> list[Card]:
        """The cards that the commit puts into the output box: all but the steers, which `begin_step` has put there."""
        return [card for card in self.cards if card.card_id not in self.steers]

    @property
    def calls(self) -> Sequence[ToolCommand]:
        """The calls to send after the commit, which suspends the turn; empty if there are none."""
        return self.metadata.commands if isinstance(self.metadata, SuspendMetadata) else ()
