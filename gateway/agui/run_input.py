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
from turnstile.gateway.openai.fields import is_empty
from turnstile.gateway.openai.messages import Said
from turnstile.schema.base import JsonObject, Strict
from turnstile.schema.errors import BadRequest
from turnstile.schema.ids import ConversationId, conversation_named

NOTES: Final = "agui"
"""The key in a turn's metadata under which its run is named."""
_RUN_LENGTH = 128


class RunQuery(Strict):
    """What goes with a run beside its input."""

    on_disconnect: Literal["cancel", "continue"] = "continue"
    """Whether the turn is stopped when its client goes away."""


def thread_of(given: RunAgentInput) -> ConversationId:
    """The conversation of a run; raises `BadField` for one that cannot be one."""
    try:
        return conversation_named(given.thread_id, "threadId")
    except BadRequest as error:
        raise BadField(str(error), "threadId") from None


def run_key(given: RunAgentInput) -> str:
    """The correlation of a run's turn; raises `BadField` for an id that cannot be in one."""
    return _key_of(given.run_id, "runId")


def parent_key(given: RunAgentInput) -> str | None:
    """The correlation of the turn of the run before, if one is named; raises as `run_key` does."""
    return None if given.parent_run_id is None else _key_of(given.parent_run_id, "parentRunId")


def _key_of(run: str, param: str) -> str:
    if not 0 < len(run) <= _RUN_LENGTH or not run.isascii() or not run.isprintable():
        raise BadField(f"{param}: 1 to {_RUN_LENGTH} printable ASCII characters are needed", param)
    return f"{NOTES}/{run}"


def check_supported(given: RunAgentInput) -> None:
    """Raises `Unsupported`, which names the field, for what no turn can do, and `BadField` for ids that cannot be."""
    thread_of(given)
    run_key(given)
    if not is_empty(given.state):
        raise Unsupported("state: it has content, and no state is shared with agents here; leave it out", "state")
    parent_key(given)


def cancels(given: RunAgentInput, query: RunQuery) -> bool:
    """Whether the turn is stopped when its client goes away; other properties are the front end's own, and pass."""
    props: object = given.forwarded_props
    fields = cast("dict[str, Any]", props) if isinstance(props, dict) else dict[str, Any]()
    if fields.get("on_disconnect") not in (None, "cancel", "continue"):
        raise BadField("forwardedProps.on_disconnect: cancel or continue", "forwardedProps.on_disconnect")
    return "cancel" in (fields.get("on_disconnect"), query.on_disconnect)


def asked_in(given: RunAgentInput) -> tuple[int, UserMessage]:
    """The user's last message, which is the instruction, and its place; raises `BadField` if there is none."""
    for place in reversed(range(len(given.messages))):
        message = given.messages[place]
        if isinstance(message, UserMessage):
            return place, message
    raise BadField("messages: a message of the user is needed", "messages")


def instruction_in(given: RunAgentInput) -> str:
    """The text of the user's last message; raises `BadField` if it has none, `Unsupported` for other parts."""
    place, message = asked_in(given)
    text = _text_of(message, place)
    if not text:
        raise BadField("messages: the user's last message says nothing", f"messages.{place}.content")
    return text


def instructions_in(given: RunAgentInput) -> list[Said]:
    """What the front end says to the agent beside the conversation: system and developer messages, and context."""
    said = [
        Said("instructions", each.content)
        for each in given.messages
        if isinstance(each, SystemMessage | DeveloperMessage)
    ]
    return said + [Said("instructions", f"{each.description}: {each.value}") for each in given.context or ()]


def history_in(given: RunAgentInput) -> list[Said]:
    """What was said before the instruction, of a thread that is not known yet.

    Raises `Unsupported` for what only another agent's kernel could go on from: calls, their results, images.
    """
    last, _ = asked_in(given)
    said: list[Said] = []
    for place, message in enumerate(given.messages[:last]):
        match message:
            case UserMessage():
                said.append(Said("user", _text_of(message, place)))
            case AssistantMessage(tool_calls=calls) if calls:
                raise Unsupported(f"messages.{place}.toolCalls: of a new thread only texts are read", "messages")
            case AssistantMessage(content=content):
                said.append(Said("assistant", content or ""))
            case ToolMessage():
                raise Unsupported(f"messages.{place}: of a new thread only texts are read, no results", "messages")
            case _:  # instructions are read apart; reasoning and activities are shown and not said
                pass
    return said


def not_offered(given: RunAgentInput) -> list[str]:
    """The names of the front end's own tools, which no agent is offered."""
    return [tool.name for tool in given.tools or ()]


def notes_of(given: RunAgentInput) -> JsonObject:
    """The turn's metadata: by which run it was asked for."""
    _, message = asked_in(given)
    return {NOTES: {"thread_id": given.thread_id, "run_id": given.run_id, "message_id": message.id}}


def _text_of(message: UserMessage, place: int) -> str:
    if isinstance(message.content, str):
        return message.content
    param = f"messages.{place}.content"
    texts: list[str] = []
    for part in message.content:
        if not isinstance(part, TextPart):
            raise Unsupported(f"{param}: parts of type {part.type} are not supported", param)
        texts.append(part.text)
    return "".join(texts)
