"""Profiles: the configuration of an agent, written in YAML and pinned by every turn (protocol §7.1)."""

import json
import operator
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Literal, Self, cast

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from turnstile.schema.base import STORED, JsonObject, Strict, known_fields
from turnstile.schema.budgets.limits import BudgetLimits
from turnstile.schema.delegation.policy import DelegationPolicy
from turnstile.schema.ids import CardId
from turnstile.schema.message_types import CLIENT_TOOLS, TYPED_ANSWERS
from turnstile.schema.parameters import checked_schema, object_schema, within_bounds
from turnstile.schema.people.approvals import InterruptRule
from turnstile.schema.tools import BUILT_IN, FUNCTION_NAME, SUBMIT_RESULT, TOOL_NAME

DEFAULT_WORKER_TARGET = "worker_generic"
DEFAULT_MAX_STEPS = 16
DEFAULT_KEPT_TURNS = 4
OUTPUT_REPAIRS = 2
"""How often a model may try again after an answer that its schema refuses, if `[worker].output_repairs` is not set."""

_PROMPT_LIMIT = 524_288
InText = Literal["tagged", "opened", "never"]
"""Where a model's text has its reasoning, if its provider has no field for it."""
_TARGET = r"^[A-Za-z0-9_-]{1,128}$"
UI_TARGETS = frozenset({"ui_worker"})
"""Targets whose turns are actions of people: no model is asked, so their profiles need none."""
PROVIDER_PARAMS = frozenset(
    {
        *("allowed_openai_params", "cache_control_injection_points", "drop_params", "extra_body", "frequency_penalty"),
        *("logit_bias", "max_completion_tokens", "metadata", "min_p", "modalities", "parallel_tool_calls"),
        *("prediction", "presence_penalty", "prompt_cache_key", "repetition_penalty", "response_format"),
        *("safety_identifier", "safety_settings", "service_tier", "thinking", "tool_choice", "top_k", "user"),
        *("verbosity", "web_search_options"),
    }
)
"""The parameters that `llm_config.params` may hold, and that `llm_config.provider_options` may set."""


def _is_absent(value: object) -> bool:
    return value is None


NOT_SUPPORTED = "schema_not_supported"
"""The code of a schema of which something cannot be enforced."""


def _counted(value: object, info: ValidationInfo) -> object:
    """Bounds a schema before anything walks it."""
    if info.context != STORED:
        within_bounds([value])
    return value


def _enforceable(value: JsonObject, info: ValidationInfo) -> JsonObject:
    """Refuses a schema of which a keyword cannot be enforced: what it asks for would be a wish."""
    if info.context == STORED:
        return value
    try:
        return checked_schema(value)
    except ValueError as error:
        raise PydanticCustomError(NOT_SUPPORTED, "{why}", {"why": str(error)}) from None


OutputSchema = Annotated[JsonObject, BeforeValidator(_counted), AfterValidator(_enforceable)]
"""A JSON schema, of any type, that a turn's answer must match (protocol §18)."""


class LlmConfig(Strict):
    """The model and its parameters. For a null parameter the provider's default applies."""

    model: str = Field(min_length=1, max_length=256)
    """`provider/model`, such as `openai/gpt-4o` or `scripted/echo`."""
    temperature: float | None = Field(default=None, ge=0, le=2)
    """The sampling temperature."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    """The probability mass of nucleus sampling."""
    max_tokens: int | None = Field(default=None, ge=1, le=10_000_000)
    """The most tokens of one answer."""
    timeout_seconds: float | None = Field(default=None, gt=0, le=3600)
    """The timeout of one attempt; null stands for the worker's `[model]` default."""
    stop: list[str] | None = Field(default=None, max_length=16)
    """Texts that end an answer."""
    seed: int | None = None
    """The sampling seed, for providers that have one."""
    reasoning_effort: str | None = Field(default=None, max_length=32)
    """The reasoning effort in the provider's terms, such as `low`."""
    params: dict[str, JsonValue] = Field(default_factory=dict)
    """Further parameters of the provider, passed on unchanged."""
    fallbacks: list[Annotated[str, Field(min_length=1, max_length=256)]] = Field(
        default_factory=list[str], max_length=8, exclude_if=operator.not_
    )
    """Models that are asked in turn where the one before is overloaded, limited, failing or too small."""
    reasoning_in_text: InText = Field(default="tagged", exclude_if=lambda value: value == "tagged")
    """`tagged`: a text that begins with `<think>` is reasoning up to `</think>`; `opened`: the text begins within it,
    since the server's chat template has written `<think>`; `never`: all of the text is the answer."""
    accepts: list[Literal["image", "pdf"]] | None = Field(default=None, max_length=2, exclude_if=_is_absent)
    """Kinds of files that the model takes; null: as the table of models says."""
    tool_choice: str | JsonObject | None = Field(default=None, exclude_if=_is_absent)
    """Which tool the model must call, in the provider's terms; as in CommonGround v1r4."""
    provider_options: JsonObject | None = Field(default=None, max_length=64, exclude_if=_is_absent)
    """As in CommonGround v1r4: those that `params` may hold are obeyed, the others are kept."""
    provider: str | None = Field(default=None, max_length=64, exclude_if=_is_absent)
    """A key of CommonGround v1r4, kept: `model` names the provider."""
    stream: bool | None = Field(default=None, exclude_if=_is_absent)
    """A key of CommonGround v1r4, kept: every answer is streamed."""
    stream_options: JsonObject | None = Field(default=None, max_length=64, exclude_if=_is_absent)
    """A key of CommonGround v1r4, kept."""
    save_reasoning_content: bool | None = Field(default=None, exclude_if=_is_absent)
    """A key of CommonGround v1r4, kept: reasoning is on the thought's card."""

    @model_validator(mode="before")
    @classmethod
    def _of_a_card(cls, value: object, info: ValidationInfo) -> object:
        # another server or key is never passed over in silence: the prompt would go to somebody else
        return known_fields(value, {*cls.model_fields, "api_base", "api_key"}) if info.context == STORED else value

    @property
    def provider_params(self) -> JsonObject:
        """What the provider gets beside the named parameters, not checked: `params` go before `provider_options`."""
        options = {name: value for name, value in (self.provider_options or {}).items() if name in PROVIDER_PARAMS}
        choice: JsonObject = {} if self.tool_choice is None else {"tool_choice": self.tool_choice}
        return {**options, **choice, **self.params}

    def not_obeyed(self) -> list[str]:
        """The keys that are kept without effect, and do not say what is done anyway."""
        provider = self.model.partition("/")[0]
        options = sorted((self.provider_options or {}).keys() - PROVIDER_PARAMS)
        same = {"custom_llm_provider"} if (self.provider_options or {}).get("custom_llm_provider") == provider else ()
        keys = [
            *(["provider"] if self.provider not in (None, provider) else []),
            *(f"provider_options.{name}" for name in options if name not in same),
            *(["stream"] if self.stream is False else []),
            *(["stream_options"] if self.stream_options else []),
            *(["save_reasoning_content"] if self.save_reasoning_content is False else []),
        ]
        return [f"llm_config.{key}" for key in keys]


KEEP_FILES = 8
"""How many of the newest files a model is sent, unless the profile's memory says otherwise."""


class Memory(Strict):
    """What turns of an agent know of earlier ones (protocol §7.3)."""

    keep: Literal["none", "conversation"] = "none"
    """`conversation`: turns that name neither a box nor a conversation go on in one that is kept for their channel."""
    max_context_tokens: int | None = Field(default=None, ge=1, le=100_000_000)
    """The most tokens of a request to the model; null: until the model refuses a request as too long."""
    when_full: Literal["drop", "summarize"] = "drop"
    """What becomes of the earliest turns then: they are left out, or a model sums them up first."""
    keep_last_turns: int = Field(default=DEFAULT_KEPT_TURNS, ge=0, le=1000)
    """The most turns that are kept then as they are; fewer where they would take too much."""
    keep_files: int = Field(default=KEEP_FILES, ge=0, le=32, exclude_if=lambda value: value == KEEP_FILES)
    """How many of the newest files the model is sent; of the others it reads the names."""
    summary_model: str | None = Field(default=None, min_length=1, max_length=256)
    """`provider/model` that sums up; null: the profile's own."""

    @model_validator(mode="after")
    def _has_use(self) -> Self:
        if self.summary_model is not None and self.when_full != "summarize":
            raise ValueError("summary_model is asked only with when_full: summarize")
        return self


class Profile(Strict):
    """A profile as `turnstile profile put` reads it and a `sys.profile` card holds it."""

    name: str = Field(min_length=1, max_length=128)
    """The profile's name, unique in the project, case-insensitively."""
    worker_target: str = Field(default=DEFAULT_WORKER_TARGET, pattern=_TARGET)
    """The target of the workers that run its agents."""
    tags: list[str] = Field(default_factory=list)
    """Tags for people."""
    system_prompt_template: str = Field(default="", max_length=_PROMPT_LIMIT)
    """The system prompt; `{agent_id}`, `{project_id}` and the like are filled in."""
    allowed_tools: list[str] | None = Field(default_factory=list[str])
    """Tools of the project that the model is offered; null: all."""
    must_end_with: list[str] = Field(default_factory=list)
    """Tools of which one must end the turn; if empty, text may end it."""
    allowed_internal_tools: list[str] | None = Field(default=None, max_length=64, exclude_if=_is_absent)
    """As in CommonGround v1r4: a list without `submit_result` hides it, unless something asks for it."""
    require_submit_result: bool = Field(default=False, exclude_if=operator.not_)
    """As in CommonGround v1r4: the same as `submit_result` in `must_end_with`."""
    description: str | None = Field(default=None, max_length=16_384, exclude_if=_is_absent)
    """What its agents do, for people."""
    max_steps: int = Field(default=DEFAULT_MAX_STEPS, ge=1, le=1000)
    """The most steps of one turn."""
    llm_config: LlmConfig | None = Field(default=None, exclude_if=_is_absent)
    """The model and its parameters; only a profile of `ui_worker`, or with `run_by`, has none."""
    run_by: str | None = Field(default=None, pattern=TOOL_NAME, exclude_if=_is_absent)
    """The tool that does its turns in place of a model (protocol §21)."""
    memory: Memory | None = Field(default=None, exclude_if=operator.not_)
    """What its turns know of earlier ones; by default nothing."""
    instances: bool = Field(default=False, exclude_if=operator.not_)
    """Whether an enqueue may name the profile alone: then an agent is made, for each conversation or each request."""
    models: list[Annotated[str, Field(min_length=1, max_length=256)]] = Field(
        default_factory=list[str], max_length=256, exclude_if=operator.not_
    )
    """Models that a request may name beside the profile's own: names, or beginnings that end in `*`."""
    free: bool = Field(default=False, exclude_if=operator.not_)
    """Whether a request may name it for any agent, and any model with it."""
    delegation_policy: DelegationPolicy | None = Field(default=None, exclude_if=operator.not_)
    """Whom its agents may delegate to; by default nobody."""
    budget: BudgetLimits | None = Field(default=None, exclude_if=lambda value: value is None)
    """What one of its turns, with all below it, may use, if its request says no less; by default no limit."""
    output_schema: OutputSchema | None = Field(default=None, exclude_if=lambda value: value is None)
    """What its turns' answers must match, unless a request asks for something else (protocol §18)."""
    interrupt_on: dict[Annotated[str, Field(pattern=TOOL_NAME)], InterruptRule] = Field(
        default_factory=dict[str, InterruptRule], max_length=1024, exclude_if=operator.not_
    )
    """Calls that wait for a person's approval, by tool: `true`, or an object that says when and how."""

    @model_validator(mode="before")
    @classmethod
    def _of_v1r4(cls, value: object, info: ValidationInfo) -> object:
        if not isinstance(value, dict):
            return value
        fields = _without_nulls(cast("JsonObject", value))
        if info.context == STORED:
            fields = cast("JsonObject", known_fields(fields, cls.model_fields))
        return fields

    @model_validator(mode="after")
    def _has_model(self) -> Self:
        if self.llm_config is not None and self.run_by is not None:
            raise ValueError("either llm_config or run_by: a turn asks a model, or a tool does it")
        if self.llm_config is None and self.run_by is None and self.worker_target not in UI_TARGETS:
            raise ValueError("llm_config is missing: write its model, as in {model: openai/gpt-4o}; or run_by, a tool")
        if self.run_by in BUILT_IN:
            raise ValueError(f"{self.run_by} is built in, and does no turns: run_by names a tool of the project")
        return self

    @property
    def end_tools(self) -> list[str]:
        """The tools of which one must end the turn."""
        required = [SUBMIT_RESULT] if self.require_submit_result else []
        return list(dict.fromkeys([*self.must_end_with, *required]))

    @property
    def hides_submit_result(self) -> bool:
        """Whether the model is not offered `submit_result`, unless a request asks for fields."""
        internal = self.allowed_internal_tools
        return internal is not None and SUBMIT_RESULT not in (*internal, *self.end_tools)

    def allows(self, tool: str) -> bool:
        """Whether it offers the tool, if the project has it."""
        return self.allowed_tools is None or tool in self.allowed_tools

    @field_validator("interrupt_on", mode="before")
    @classmethod
    def _bounded(cls, value: object, info: ValidationInfo) -> object:
        if info.context != STORED:
            within_bounds([value])
        return value

    @field_validator("interrupt_on")
    @classmethod
    def _goes_out(cls, value: dict[str, InterruptRule]) -> dict[str, InterruptRule]:
        if built_in := BUILT_IN & value.keys():
            raise ValueError(f"{min(built_in)} is built in: its calls go to no tool, and wait for nobody")
        return value


_NULLS = ("tags", "system_prompt_template", "must_end_with", "llm_config", "require_submit_result", "max_steps")


def _without_nulls(value: JsonObject) -> JsonObject:
    """A profile whose nulls, other forms of lists and `system_prompt` are what CommonGround v1r4 reads in them."""
    fields: JsonObject = {name: field for name, field in value.items() if field is not None or name not in _NULLS}
    prompt = fields.pop("system_prompt", None)
    if prompt is not None and not fields.get("system_prompt_template"):
        fields["system_prompt_template"] = prompt
    if isinstance(tags := fields.get("tags"), str):
        fields["tags"] = [tag.strip() for tag in tags.split(",") if tag.strip()]
    if isinstance(end := fields.get("must_end_with"), str):
        fields["must_end_with"] = [end.strip()] if end.strip() else []
    if fields.get("llm_config") == {}:
        del fields["llm_config"]
    return fields


def memory_problem(profile: Profile, tools: Iterable[str]) -> str | None:
    """Why the profile's memory holds no turn, whatever is asked; `tools` are the texts of the tools that it offers.

    A token never spans two words, so that words are the least that a model may count.
    """
    if profile.memory is None or (limit := profile.memory.max_context_tokens) is None:
        return None
    if profile.memory.keep_last_turns > limit:
        return f"{profile.memory.keep_last_turns} turns (keep_last_turns) never fit into {limit} tokens"
    prompt = len(profile.system_prompt_template.split())
    offered = sum(len(text.split()) for text in tools)
    if prompt + offered < limit:
        return None
    return f"of {limit} tokens (max_context_tokens) the prompt alone takes {prompt} or more, tools {offered} or more"


class ClientTool(Strict):
    """A tool of one turn that whoever asks for the turn runs (protocol §19)."""

    name: str = Field(pattern=FUNCTION_NAME)
    """The name by which the model calls it."""
    description: str = Field(default="", max_length=16_384)
    """What it does: the model reads this."""
    parameters: JsonObject = Field(default_factory=lambda: JsonObject(type="object", properties={}))
    """A JSON Schema of type object: its arguments."""

    @field_validator("parameters")
    @classmethod
    def _is_schema(cls, value: JsonObject, info: ValidationInfo) -> JsonObject:
        # the check takes half a millisecond or more, so a step that reads the row passes STORED
        return value if info.context == STORED else object_schema(value)


class Choice(ClientTool):
    """A tool that is built into one turn: calling it ends the turn, its arguments are the deliverable (§7.4)."""

    description: str = Field(min_length=1, max_length=16_384)
    """When to choose it: the model reads this."""

    @field_validator("name")
    @classmethod
    def _not_built_in(cls, value: str) -> str:
        if value in BUILT_IN:
            raise ValueError(f"{value} is built in: choose another name")
        return value


CLIENT_TOOL_SECONDS = 600.0
"""How long a call of a client's tool is open, unless its request says otherwise."""
MOST_CLIENT_TOOLS = 128


class RuntimeConfig(Strict):
    """The settings that one enqueue may override or add."""

    model: str | None = Field(default=None, min_length=1, max_length=256)
    """`provider/model`, instead of the profile's."""
    temperature: float | None = Field(default=None, ge=0, le=2)
    """Instead of the profile's."""
    max_tokens: int | None = Field(default=None, ge=1, le=10_000_000)
    """Instead of the profile's."""
    timeout_seconds: float | None = Field(default=None, gt=0, le=3600)
    """Instead of the profile's."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    """Instead of the profile's."""
    stop: list[Annotated[str, Field(min_length=1, max_length=512)]] | None = Field(default=None, max_length=16)
    """Texts that end an answer, instead of the profile's."""
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    """Instead of the profile's."""
    reasoning_effort: str | None = Field(default=None, min_length=1, max_length=32)
    """Instead of the profile's."""
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    """A parameter of the provider, instead of the profile's in `params`; so are the three after it."""
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    """How much a word that was said already is avoided."""
    parallel_tool_calls: bool | None = None
    """Whether an answer may have several calls."""
    verbosity: str | None = Field(default=None, min_length=1, max_length=32)
    """How long answers are, in the provider's terms, such as `low`."""
    max_steps: int | None = Field(default=None, ge=1, le=1000)
    """Lowers the profile's."""
    instructions: str | None = Field(default=None, min_length=1, max_length=_PROMPT_LIMIT)
    """Text appended unchanged to the system prompt of the turn: its braces are not placeholders."""
    # left out of rows and digests if empty, so that a turn without them has the same digest as before
    choices: list[Choice] = Field(default_factory=list[Choice], max_length=256, exclude_if=operator.not_)
    """Tools of this turn only; a call of one ends the turn."""
    output_schema: OutputSchema | None = Field(default=None, exclude_if=lambda value: value is None)
    """A JSON schema: the deliverable is `{value}`, and the value matches it (protocol §18). Not with choices."""
    client_tools: list[ClientTool] = Field(
        default_factory=list[ClientTool], max_length=MOST_CLIENT_TOOLS, exclude_if=operator.not_
    )
    """Tools of this turn only, whose calls whoever asks for the turn runs (protocol §19)."""
    client_tool_seconds: float | None = Field(default=None, ge=1, le=7 * 86_400, exclude_if=_is_absent)
    """How long each of these calls is waited for; null: 600 s."""
    client_gone: Literal["timeout", "cancel"] = Field(default="timeout", exclude_if=lambda value: value == "timeout")
    """What an unanswered one becomes: a result `timeout`, or the end of the turn as `canceled`, `client_gone`."""
    tool_choice: str | None = Field(default=None, max_length=64, exclude_if=_is_absent)
    """`required`, or the name of a tool: what the model must call in the turn's first step."""
    remember: bool = Field(default=False, exclude_if=operator.not_)
    """Whether to put the instruction into the output box, too, so that later turns with that box read it (§7.3)."""

    @field_validator("choices", "client_tools", mode="before")
    @classmethod
    def _bounded(cls, value: object, info: ValidationInfo) -> object:
        if info.context != STORED:
            within_bounds([value])
        return value

    @field_validator("choices")
    @classmethod
    def _names_differ(cls, value: list[Choice]) -> list[Choice]:
        if len({choice.name for choice in value}) < len(value):
            raise ValueError("each choice needs a name of its own")
        return value

    @field_validator("client_tools")
    @classmethod
    def _tools_differ(cls, value: list[ClientTool]) -> list[ClientTool]:
        if len({tool.name for tool in value}) < len(value):
            raise ValueError("each client tool needs a name of its own")
        return value

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        if self.output_schema is not None and self.choices:
            raise ValueError("either output_schema or choices: each says what the answer is")
        return self

    @property
    def needs_level(self) -> int | None:
        """The level of the protocol that all who run must speak (§18): those below it overlook a setting."""
        if any(getattr(self, name) for name in _SINCE_CLIENT_TOOLS):
            return CLIENT_TOOLS
        return TYPED_ANSWERS if any(getattr(self, name) is not None for name in _SINCE_TYPED_ANSWERS) else None

    def texts(self) -> list[str]:
        """The texts that count towards the size of the request (protocol §6)."""
        output = [] if self.output_schema is None else [self.output_schema]
        tools = (*self.choices, *self.client_tools)
        schemas = (json.dumps(s, ensure_ascii=False) for s in (*(tool.parameters for tool in tools), *output))
        return [self.instructions or "", *(tool.name + tool.description for tool in tools), *schemas]

    def split(self) -> tuple[JsonObject, JsonObject]:
        """The settings for the inbox row, and the text for a card (protocol §4.4); either may be empty."""
        whole: JsonObject = self.model_dump(mode="json", exclude_none=True)
        text = {name: whole.pop(name) for name in _TEXT if name in whole}
        return whole, text


_TEXT = ("instructions", "choices", "output_schema", "client_tools")
REQUEST_PARAMS = ("frequency_penalty", "presence_penalty", "parallel_tool_calls", "verbosity")
"""Settings of an enqueue that are parameters of the provider."""
_SINCE_TYPED_ANSWERS = ("output_schema", "top_p", "stop", "seed", "reasoning_effort", *REQUEST_PARAMS)
_SINCE_CLIENT_TOOLS = ("client_tools", "tool_choice")


class StoredConfig(RuntimeConfig):
    """The settings as a turn's inbox row has them: its texts and schemas are on a card (protocol §4.4).

    What a newer version wrote is not read: such a turn is made only while all that run know it (`protocol_level`).
    """

    model_config = ConfigDict(extra="ignore")

    card_id: CardId | None = Field(default=None, exclude_if=lambda value: value is None)
    """The `task.runtime_config` card in the turn's context box; null if the turn has none."""

    def merged(self, text: JsonValue) -> RuntimeConfig:
        """The settings of the enqueue, with the text of the card; raises `ValidationError` if that is no such text."""
        settings = self.model_dump(mode="json", exclude_unset=True, exclude={"card_id"})
        overrides: JsonObject = {"text": text}  # which no setting is called
        if isinstance(text, dict) and not text.keys() & (StoredConfig.model_fields.keys() - set(_TEXT)):
            overrides = {name: text[name] for name in _TEXT if name in text}
        return RuntimeConfig.model_validate({**settings, **overrides}, context=STORED)


_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")
_BRACES = re.compile(r"\{([a-z_]+)\}|\{\{|\}\}|\{|\}")
DOWNSTREAM_PLACEHOLDERS = frozenset({"downstream_profiles_desc", "downstream_roster", "downstream_desc"})
"""The profiles that the agent may delegate to, as CommonGround v1r4 lists them."""
ROSTER_PLACEHOLDERS = DOWNSTREAM_PLACEHOLDERS | {"display_name"}
"""Those that the first step reads the roster for."""
PROMPT_PLACEHOLDERS = ROSTER_PLACEHOLDERS | {
    *("project_id", "channel_id", "agent_id", "agent_turn_id", "turn_epoch", "step_id", "parent_step_id"),
    *("trace_id", "context_box_id"),
}
"""The placeholders of a system prompt (protocol §7.3); a call's arguments have those of ids, and `tool_call_id`."""


def placeholders(template: str) -> set[str]:
    """The names in braces in the template, known or not."""
    return set(_PLACEHOLDER.findall(template))


def render(template: str, values: dict[str, str]) -> str:
    """Replace the placeholders named in `values` (protocol §7.3); other braces are kept."""
    return _PLACEHOLDER.sub(lambda match: values.get(match[1], match[0]), template)


def render_prompt(template: str, values: Mapping[str, str]) -> str:
    """`render` of a system prompt, where `{{` and the `}}` that closes it are one brace each.

    A `}}` that closes two single braces stays, so that JSON may be written as it is.
    """
    parts: list[str] = []
    opened: list[str] = []
    position = 0
    while (match := _BRACES.search(template, position)) is not None:
        token, name, end = match[0], match[1], match.end()
        if name is not None:
            text = values.get(name, token)
        elif token in ("{", "{{"):
            opened.append(token)
            text = "{"
        elif token == "}}" and opened[-1:] == ["{{"]:  # noqa: S105 -- a brace
            opened.pop()
            text = "}"
        else:  # one brace at a time: the other may belong to another pair
            if opened[-1:] == ["{"]:
                opened.pop()
            text, end = "}", match.start() + 1
        parts += [template[position : match.start()], text]
        position = end
    return "".join((*parts, template[position:]))
