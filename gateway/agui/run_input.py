"""What of AG-UI's `RunAgentInput` is read, and what it is to a turn (protocol §17.4). Pure.

What is not supported is refused by name; what says nothing, such as an empty list, passes.
"""

from typing import Any, Final, Literal, cast

from ag_ui.core import (
    AssistantMessage,
    DeveloperMessage,
    RunAgentInput,
    SystemMessage,
    TextPart,
    ToolMessage,
    UserMessage,
)

from turnstile.gateway.http.problems import BadField, Unsupported
from turnstile.gateway.openai.client_tools import read_function
from turnstile.gateway.openai.fields import is_empty
from turnstile.gateway.openai.messages import SpokenText
from turnstile.schema.base import JsonObject, Strict
from turnstile.schema.errors import BadRequest
from turnstile.schema.ids import ConversationId, conversation_named
from turnstile.schema.people.approvals import Decision
from turnstile.schema.profiles import MOST_CLIENT_TOOLS

NOTES: Final = "agui"
"""The key in a turn's metadata under which its run is named."""
_RUN_LENGTH = 128
_ERROR_LENGTH = 4096


class RunQuery(Strict):
    """What goes with a run beside its input."""

    on_disconnect: Literal["cancel", "continue"] = "continue"
    """Whether the turn is stopped when its client goes away."""


def thread_of(run_input: RunAgentInput) -> ConversationId:
    """The conversation of a run; raises `BadField` for one that cannot be one."""
    try:
        return conversation_named(run_input.thread_id, "threadId")
    except BadRequest as error:
        raise BadField(str(error), "threadId") from None


def run_key(run_input: RunAgentInput) -> str:
    """The correlation of a run's turn; raises `BadField` for an id that cannot be in one."""
    return _key_of(run_input.run_id, "runId")


def parent_key(run_input: RunAgentInput) -> str | None:
    """The correlation of the turn of the run before, if one is named; raises as `run_key` does."""
    return None if run_input.parent_run_id is None else _key_of(run_input.parent_run_id, "parentRunId")


def _key_of(run: str, param: str) -> str:
    if not 0 < len(run) <= _RUN_LENGTH or not run.isascii() or not run.isprintable():
        raise BadField(f"{param}: must be 1 to {_RUN_LENGTH} printable ASCII characters", param)
    return f"{NOTES}/{run}"


def check_supported(run_input: RunAgentInput) -> None:
    """Raises `Unsupported`, which names the field, for what no turn can do, and `BadField` for ids that cannot be."""
    thread_of(run_input)
    run_key(run_input)
    if not is_empty(run_input.state):
        raise Unsupported("state: must be empty, because agents share no state with clients; omit it", "state")
    parent_key(run_input)


def cancels(run_input: RunAgentInput, query: RunQuery) -> bool:
    """Whether the turn is stopped when its client goes away; other properties are the front end's own, and pass."""
    props: object = run_input.forwarded_props
    fields = cast("dict[str, Any]", props) if isinstance(props, dict) else dict[str, Any]()
    if fields.get("on_disconnect") not in (None, "cancel", "continue"):
        raise BadField("forwardedProps.on_disconnect: cancel or continue", "forwardedProps.on_disconnect")
    return "cancel" in (fields.get("on_disconnect"), query.on_disconnect)


def asked_in(run_input: RunAgentInput) -> tuple[int, UserMessage]:
    """The user's last message, which is the instruction, and its place; raises `BadField` if there is none."""
    for place in reversed(range(len(run_input.messages))):
        message = run_input.messages[place]
        if isinstance(message, UserMessage):
            return place, message
    raise BadField("messages: a user message is required", "messages")


def instruction_in(run_input: RunAgentInput) -> str:
    """The text of the user's last message; raises `BadField` if it has none, `Unsupported` for other parts."""
    place, message = asked_in(run_input)
    text = _text_of(message, place)
    if not text:
        raise BadField("messages: the last user message is empty", f"messages.{place}.content")
    return text


def instructions_in(run_input: RunAgentInput) -> list[SpokenText]:
    """What the front end says to the agent beside the conversation: system and developer messages, and context."""
    texts = [
        SpokenText("instructions", message.content)
        for message in run_input.messages
        if isinstance(message, SystemMessage | DeveloperMessage)
    ]
    return texts + [
        SpokenText("instructions", f"{entry.description}: {entry.value}") for entry in run_input.context or ()
    ]


def history_in(run_input: RunAgentInput) -> list[SpokenText]:
    """What was said before the instruction, of a thread that is not known yet.

    Raises `Unsupported` for what only another agent's kernel could go on from: calls, their results, images.
    """
    last, _ = asked_in(run_input)
    texts: list[SpokenText] = []
    for place, message in enumerate(run_input.messages[:last]):
        match message:
            case UserMessage():
                texts.append(SpokenText("user", _text_of(message, place)))
            case AssistantMessage(tool_calls=calls) if calls:
                raise Unsupported(
                    f"messages.{place}.toolCalls: a new thread may begin with text messages only", "messages"
                )
            case AssistantMessage(content=content):
                texts.append(SpokenText("assistant", content or ""))
            case ToolMessage():
                raise Unsupported(
                    f"messages.{place}: a new thread may begin with text messages only, not with tool results",
                    "messages",
                )
            case _:  # instructions are read apart; reasoning and activities are shown and not said
                pass
    return texts


def client_tools_in(run_input: RunAgentInput) -> JsonObject:
    """The turn's settings for the front end's own tools; raises `BadField` or `UnsupportedSchema`."""
    tools = run_input.tools or []
    if len(tools) > MOST_CLIENT_TOOLS:
        raise BadField(f"tools: at most {MOST_CLIENT_TOOLS}", "tools")
    functions = [read_function(tool.model_dump(mode="json"), f"tools.{place}") for place, tool in enumerate(tools)]
    if len({function.name for function in functions}) < len(functions):
        raise BadField("tools: each tool needs a name of its own", "tools")
    return {"client_tools": [function.model_dump(mode="json") for function in functions]} if functions else {}


def outputs_in(run_input: RunAgentInput) -> dict[str, JsonObject]:
    """By their calls the decisions that the messages of role `tool` after the user's last message stand for."""
    outputs: dict[str, JsonObject] = {}
    for place, message in enumerate(run_input.messages):
        if isinstance(message, UserMessage):
            outputs.clear()
        if not isinstance(message, ToolMessage):
            continue
        outputs[message.tool_call_id] = (
            {"decision": Decision.RESPOND, "response": _text_of(message, place)}
            if message.error is None
            else {"decision": Decision.REJECT, "message": message.error[:_ERROR_LENGTH]}
        )
    return outputs


def notes_of(run_input: RunAgentInput) -> JsonObject:
    """The turn's metadata: by which run it was asked for."""
    _, message = asked_in(run_input)
    return {NOTES: {"thread_id": run_input.thread_id, "run_id": run_input.run_id, "message_id": message.id}}


def end_user_in(run_input: RunAgentInput) -> JsonObject:
    """The enqueue's end user, as `forwardedProps.end_user` names it."""
    props: object = run_input.forwarded_props
    if not isinstance(props, dict) or not isinstance(name := cast("JsonObject", props).get("end_user"), str):
        return {}
    return {"end_user": name}


def _text_of(message: UserMessage | ToolMessage, place: int) -> str:
    if isinstance(message.content, str):
        return message.content
    param = f"messages.{place}.content"
    texts: list[str] = []
    for part in message.content:
        if not isinstance(part, TextPart):
            raise Unsupported(f"{param}: content parts of type {part.type} are not supported", param)
        texts.append(part.text)
    return "".join(texts)
