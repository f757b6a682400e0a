"""A turn's configuration (profile, limits and tools), pinned with its first step (protocol §7.1).

The rendered prompt and the tool specs become cards of the turn; the rest is `turn_config` in the first step's metadata.
Later steps read these, so that editing a profile during a turn does not change the turn.
"""

import logging
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, cast

from pydantic import Field, ValidationError

from turnstile.rules.holds import ASK_HUMAN_ROW
from turnstile.rules.text import function_name
from turnstile.rules.tool_specs import (
    ToolSpecs,
    build_tool_specs,
    last_specs,
    spec_name,
    taken_name,
    wanted_fields,
)
from turnstile.rules.turn_step import BegunStep
from turnstile.schema.base import STORED, JsonObject, Tolerant
from turnstile.schema.cards import (
    SYSTEM_AUTHOR,
    Card,
    CardType,
    CardUnreadable,
    JsonContent,
    Role,
    TextContent,
    ToolContent,
    content_of,
    make_card,
)
from turnstile.schema.delegation.definitions import kernel_tools
from turnstile.schema.delegation.policy import DelegationPolicy
from turnstile.schema.errors import ModelError
from turnstile.schema.ids import CardId, step_card_id, step_id
from turnstile.schema.people.approvals import ApprovalRule, rules_of
from turnstile.schema.profiles import (
    CLIENT_TOOL_SECONDS,
    DOWNSTREAM_PLACEHOLDERS,
    OUTPUT_REPAIRS,
    REQUEST_PARAMS,
    ROSTER_PLACEHOLDERS,
    LlmConfig,
    Memory,
    Profile,
    RuntimeConfig,
    placeholders,
    render_prompt,
)
from turnstile.schema.tools import INLINE_RESULT_CHARS, ToolRow
from turnstile.schema.turns import TurnRef

log = logging.getLogger(__name__)


class TurnConfig(Tolerant):
    """The pinned limits of a turn, without any text of the profile."""

    profile_name: str
    llm_config: LlmConfig | None = Field(default=None, exclude_if=lambda value: value is None)
    """The model; None with `run_by`."""
    run_by: str | None = Field(default=None, exclude_if=lambda value: value is None)
    """The tool whose call is the turn's only step (protocol §21)."""
    max_steps: int
    must_end_with: list[str]
    tools: dict[str, ToolRow]
    """The rows of the offered tools by name, as they were at the first step."""
    choices: dict[str, JsonObject] = Field(default_factory=dict[str, JsonObject], exclude_if=operator.not_)
    """The parameters of each choice by its name."""
    client_tools: dict[str, JsonObject] = Field(default_factory=dict[str, JsonObject], exclude_if=operator.not_)
    """The parameters of each tool that the turn's requester runs, by its name (protocol §19)."""
    client_tool_seconds: float = Field(
        default=CLIENT_TOOL_SECONDS, exclude_if=lambda value: value == CLIENT_TOOL_SECONDS
    )
    """How long each call of one is waited for."""
    client_gone: Literal["timeout", "cancel"] = Field(default="timeout", exclude_if=lambda value: value == "timeout")
    """What becomes of one that is not answered."""
    tool_choice: str | None = Field(default=None, exclude_if=lambda value: value is None)
    """What the model must call in the first step: `required`, or a function's name."""
    output_schema: JsonObject | None = Field(default=None, exclude_if=lambda value: value is None)
    """What the deliverable's value must match."""
    output_repairs: int = Field(default=OUTPUT_REPAIRS, exclude_if=lambda value: value == OUTPUT_REPAIRS)
    """How often the model may try again after a value that does not."""
    memory: Memory | None = Field(default=None, exclude_if=operator.not_)
    """What the profile says of memory."""
    interrupt_on: dict[str, ApprovalRule] = Field(default_factory=dict[str, ApprovalRule], exclude_if=operator.not_)
    """The rules of the profile, and of the agent's own, of which calls wait for a person, by tool."""
    inline_result_chars: int = Field(default=INLINE_RESULT_CHARS, exclude_if=lambda value: value == INLINE_RESULT_CHARS)
    """The longest result of a call that the model sees whole."""
    context_position: int | None = Field(default=None, exclude_if=lambda value: value is None)
    """The last position of the context box that belongs to the turn; later steps read no further."""

    @property
    def model(self) -> LlmConfig:
        """The model that it asks; raises `ModelError` if a tool does the turn."""
        if self.llm_config is None:
            raise ModelError("model_request_invalid", "the turn asks no model", retryable=False)
        return self.llm_config

    def tool(self, called: str) -> ToolRow | None:
        """The offered tool that a model calls so."""
        if (row := self.tools.get(called)) is not None:
            return row
        return next((row for name, row in self.tools.items() if function_name(name) == called), None)


@dataclass(frozen=True, slots=True)
class PinnedConfig:
    """A turn's configuration, its system prompt and tool specs, and the cards that pin them (first step only).

    If the turn shall be remembered, its instruction, which is in the context box already, is the first of these cards.
    """

    config: TurnConfig
    system_prompt: str
    specs: tuple[JsonObject, ...]
    cards: tuple[Card, ...]

    @property
    def last_specs(self) -> tuple[JsonObject, ...]:
        """The tool specs of the last allowed step (protocol §7.8)."""
        return last_specs(self.specs, self.config.choices)

    def steps_note(self, step: int) -> str:
        """What the model reads of its limit in the last two of its steps, if it took one before (protocol §7.8)."""
        most = self.config.max_steps
        if step == 1 or step < most - 1:
            return ""
        names = " or ".join(name for spec in self.last_specs if (name := spec_name(spec)) is not None)
        if step < most:
            end = f" Plan to call {names} in the next step." if names else ""
            return f"(2 of {most} steps are left, this one included. Bring your results together now.{end})"
        end = f", by calling {names} and no other tool" if names else ": no tool can be called any more"
        return f"(This is the last of {most} steps. Give your final answer now{end}.)"


PROMPT_PROFILES = 500
"""The most profiles that a system prompt names, as in CommonGround v1r4."""
_LONGEST_LINE, _LONGEST_ROSTER = 512, 65_536
"""The most characters of one profile, and of all; a display name has a line's."""


class PromptProfile(Tolerant):
    """A profile of the project."""

    name: str
    tags: list[str]


@dataclass(frozen=True, slots=True)
class PromptRoster:
    """What a system prompt may say of its agent, and of the profiles of its project by name."""

    display_name: str | None
    profiles: Sequence[PromptProfile]

    def values(self, profile: Profile) -> dict[str, str]:
        """The values of the roster's placeholders."""
        lines = "\n".join(line[:_LONGEST_LINE] for line in self._lines(profile.delegation_policy))[:_LONGEST_ROSTER]
        name = (self.display_name or profile.name)[:_LONGEST_LINE]
        return {"display_name": name, **dict.fromkeys(DOWNSTREAM_PLACEHOLDERS, lines or NOBODY)}

    def _lines(self, policy: DelegationPolicy | None) -> Iterator[str]:
        if policy is None:
            return
        for profile in self.profiles:
            if policy.allows(profile.name, profile.tags):
                tags = ", ".join(profile.tags)
                yield f"- {profile.name} ({tags})" if tags else f"- {profile.name}"


NOBODY = "No downstream profiles available."
"""Stands for the profiles of an agent that may ask nobody."""


def asks_roster(begun: BegunStep) -> Profile | None:
    """The profile, if the step makes its system prompt and that says something of the roster; raises as `pin`."""
    if begun.head.turn_config is not None:
        return None
    profile = _profile(begun.profile)
    return None if ROSTER_PLACEHOLDERS.isdisjoint(placeholders(profile.system_prompt_template)) else profile


def pin(
    turn: TurnRef,
    begun: BegunStep,
    max_steps: int,
    inline_result_chars: int = INLINE_RESULT_CHARS,
    roster: Mapping[str, str] = MappingProxyType({}),
    *,
    output_repairs: int = OUTPUT_REPAIRS,
) -> PinnedConfig:
    """Read the pinned configuration, or make it in the first step. `roster`: the values of its placeholders.

    Raises `ModelError` (`model_request_invalid`) if it cannot be read or made, or `CardUnreadable`.
    """
    if begun.head.turn_config is not None:
        return _pinned(turn, begun, begun.head.turn_config)
    profile = _profile(begun.profile)
    if profile.llm_config is None and profile.run_by is None:
        message = f"profile {profile.name} has no llm_config: it is for actions of people only"
        raise ModelError("model_request_invalid", message, retryable=False)
    runtime = _settings(begun)
    schema = _output_schema(profile, runtime, begun)
    tools = _tools(profile, runtime, schema, begun)
    for warning in tools.warnings:
        log.warning("turn %s: %s", turn.agent_turn_id, warning)
    config = TurnConfig(
        profile_name=profile.name,
        llm_config=None if profile.llm_config is None else with_runtime(profile.llm_config, runtime),
        run_by=profile.run_by,
        max_steps=min(max_steps, profile.max_steps, runtime.max_steps or max_steps),
        must_end_with=profile.end_tools,
        tools=tools.rows,
        choices={choice.name: choice.parameters for choice in runtime.choices},
        client_tools={tool.name: tool.parameters for tool in runtime.client_tools},
        client_tool_seconds=runtime.client_tool_seconds or CLIENT_TOOL_SECONDS,
        client_gone=runtime.client_gone,
        tool_choice=runtime.tool_choice,
        output_schema=schema,
        output_repairs=output_repairs,
        memory=profile.memory,
        interrupt_on=rules_of(profile.interrupt_on, begun.head.guards or {}),
        inline_result_chars=inline_result_chars,
        context_position=begun.context_position,
    )
    instructions = asked(turn, begun) if runtime.remember else ()
    if profile.run_by is not None:
        return PinnedConfig(config, "", (), instructions)
    parent = begun.head.parent_step_id or ""
    ids = turn.placeholders(step_id(turn.agent_turn_id, 1), parent)
    prompt = render_prompt(profile.system_prompt_template, {**ids, **roster})
    if runtime.instructions is not None:
        prompt = f"{prompt.rstrip()}\n\n{runtime.instructions}" if prompt.strip() else runtime.instructions
    return PinnedConfig(config, prompt, tools.specs, (*instructions, *_cards(turn, prompt, tools.specs)))


def _tools(profile: Profile, runtime: RuntimeConfig, schema: JsonObject | None, begun: BegunStep) -> ToolSpecs:
    """What its model is offered; of a turn that a tool does, the row of that tool, if it is there."""
    rows = tool_rows(begun.head.tools)
    if profile.run_by is not None and runtime.client_tools:
        message = (
            f"client_tools: the profile's turns are done by the tool {profile.run_by}, which calls no client's tools"
        )
        raise ModelError("client_tools_not_offered", message, retryable=False)
    if profile.run_by is not None:
        return ToolSpecs((), {row.tool_name: row for row in rows if row.tool_name == profile.run_by}, ())
    known = {row.tool_name for row in rows}
    offered = [*kernel_tools().values(), ASK_HUMAN_ROW]
    named = frozenset(profile.allowed_tools or ())
    rows += [row for row in offered if row.tool_name in named - known]
    own = runtime.client_tools
    row_names = (str(row.get("tool_name")) for row in begun.head.tools)
    if (taken := taken_name(row_names, runtime.choices, own)) is not None:
        message = f"the client's tool {taken} has the name of another tool: choose another one"
        raise ModelError("tool_name_taken", message, retryable=False)
    submits = not profile.hides_submit_result or schema is not None or bool(wanted_fields(begun.context).fields)
    return build_tool_specs(
        rows, profile.allowed_tools, runtime.choices, schema, submit_result=submits, client_tools=own
    )


def run_by_of(begun: BegunStep) -> str | None:
    """The tool that does the turn in place of a model, without a check of the profile; None if a model does."""
    if (pinned := begun.head.turn_config) is not None:
        return cast("str | None", pinned.get("run_by"))
    for card in reversed(begun.profile):
        if card.type == CardType.PROFILE:
            match card.content:
                case {"data": {"run_by": str(tool)}}:
                    return tool
                case _:
                    return None
    return None


def output_schema_of(begun: BegunStep) -> JsonObject | None:
    """What the turn's answer must match (protocol §18); raises as `pin` does."""
    return _output_schema(_profile(begun.profile), _settings(begun), begun)


def _output_schema(profile: Profile, runtime: RuntimeConfig, begun: BegunStep) -> JsonObject | None:
    """The request's schema; else the profile's, unless the request says in another way what the answer is."""
    if runtime.output_schema is not None:
        return runtime.output_schema
    asks_otherwise = runtime.choices or any(card.type == CardType.RESULT_FIELDS for card in begun.context)
    return None if asks_otherwise else profile.output_schema


def asked(turn: TurnRef, begun: BegunStep, *, anew: bool = True) -> tuple[Card, ...]:
    """The card of the turn's own instruction; of a rerun that of the turn that was asked.

    `anew`: unless the output box has it, as the copy that a rerun begins with may.
    """
    rerun, there = begun.head.rerun, {card.card_id for card in begun.output} if anew else set[CardId]()
    turns = {turn.agent_turn_id, *(() if rerun is None else rerun.line)}
    cards = (card for card in begun.context if card.type == CardType.INSTRUCTION and card.card_id not in there)
    return tuple(card for card in cards if card.metadata.agent_turn_id in turns)


def _pinned(turn: TurnRef, begun: BegunStep, stored: JsonObject) -> PinnedConfig:
    if stored.get("run_by") is not None:
        return PinnedConfig(TurnConfig.model_validate(stored), "", (), ())
    cards = {card.type: card for card in begun.output if card.metadata.agent_turn_id == turn.agent_turn_id}
    prompt, tools = cards.get(CardType.RENDERED_PROMPT), cards.get(CardType.TOOLS)
    if prompt is None or tools is None:
        raise ModelError("model_request_invalid", "the turn's pinned prompt and tools are gone", retryable=False)
    text, specs = content_of(prompt), content_of(tools)
    if not isinstance(text, TextContent) or not isinstance(specs, ToolContent):
        raise ModelError("model_request_invalid", "the turn's pinned prompt and tools do not parse", retryable=False)
    return PinnedConfig(TurnConfig.model_validate(stored), text.text, tuple(specs.tools), ())


def _settings(begun: BegunStep) -> RuntimeConfig:
    """The settings of the enqueue, with the text on the card that the turn's row names."""
    stored = begun.head.runtime_config
    if stored.card_id is None:
        return stored
    card = next((card for card in begun.context if card.card_id == stored.card_id), None)
    if card is None:
        message = f"the card {stored.card_id} with the turn's instructions, choices or schema is gone"
        raise ModelError("model_request_invalid", message, retryable=False)
    content = content_of(card)
    try:
        return stored.merged(content.data if isinstance(content, JsonContent) else None)
    except ValidationError:
        raise CardUnreadable(f"card {card.card_id} ({card.type}) has no instructions, choices or schema") from None


def _profile(cards: Sequence[Card]) -> Profile:
    for card in reversed(cards):
        if card.type == CardType.PROFILE:
            content = content_of(card)
            try:
                return Profile.model_validate(
                    content.data if isinstance(content, JsonContent) else None, context=STORED
                )
            except ValidationError:
                message = f"the profile in card {card.card_id} does not parse: put it again"
                raise ModelError("model_request_invalid", message, retryable=False) from None
    raise ModelError("model_request_invalid", "the turn's profile box holds no sys.profile card", retryable=False)


def tool_rows(raw: Iterable[JsonObject]) -> list[ToolRow]:
    """Parse a project's tool rows; a row that does not parse is left out with a warning."""
    rows: list[ToolRow] = []
    for row in raw:
        try:
            # A column that is null has the default.
            rows.append(ToolRow.model_validate({name: value for name, value in row.items() if value is not None}))
        except ValidationError:
            log.warning("tool %s is left out: its row does not parse", str(row.get("tool_name"))[:64])
    return rows


def with_runtime(config: LlmConfig, runtime: RuntimeConfig) -> LlmConfig:
    """The model and parameters of a turn: what its request says, else the profile."""
    chosen = runtime.model_dump(exclude_none=True, include={*LlmConfig.model_fields})
    params = runtime.model_dump(exclude_none=True, include={*REQUEST_PARAMS})
    return config.model_copy(update={**chosen, "params": {**config.params, **params}})


def _cards(turn: TurnRef, prompt: str, specs: Sequence[JsonObject]) -> tuple[Card, ...]:
    step = step_id(turn.agent_turn_id, 1)
    pinned = (
        ("prompt", CardType.RENDERED_PROMPT, TextContent(text=prompt)),
        ("tools", CardType.TOOLS, ToolContent(tools=list(specs))),
    )
    return tuple(
        make_card(
            step_card_id(step, name),
            card_type,
            Role.SYSTEM,
            content,
            author=SYSTEM_AUTHOR,
            turn=turn.agent_turn_id,
            step=step,
            trace=turn.trace_id,
        )
        for name, card_type, content in pinned
    )
