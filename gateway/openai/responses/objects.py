"""A response in OpenAI's words: the object, its items and its stream's events. Pure."""

from typing import Literal

from pydantic import BaseModel, Field

from turnstile.schema.base import JsonObject

Status = Literal["queued", "in_progress", "completed", "failed", "cancelled", "incomplete"]
ItemStatus = Literal["in_progress", "completed", "incomplete"]


class OutputText(BaseModel):
    """The text of a message."""

    type: Literal["output_text"] = "output_text"
    text: str = ""
    annotations: list[str] = Field(default_factory=list[str])
    logprobs: list[str] = Field(default_factory=list[str])


class Message(BaseModel):
    """What the agent said."""

    type: Literal["message"] = "message"
    id: str
    role: Literal["assistant"] = "assistant"
    status: ItemStatus = "completed"
    content: list[OutputText]

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(part.text for part in self.content)


class McpCall(BaseModel):
    """A call that the agent made and the kernel has run: nothing for a client to do."""

    type: Literal["mcp_call"] = "mcp_call"
    id: str
    server_label: str
    """The MCP server whose tool it is, or `turnstile`."""
    name: str
    arguments: str
    output: str | None = None
    error: str | None = None
    status: Literal["in_progress", "completed", "incomplete", "failed"] = "in_progress"
    approval_request_id: None = None


class FunctionCallItem(BaseModel):
    """A call of a function of the client's own, which the client runs (protocol §19)."""

    type: Literal["function_call"] = "function_call"
    id: str
    call_id: str
    name: str
    arguments: str
    status: ItemStatus = "completed"


Item = Message | McpCall | FunctionCallItem


class InputText(BaseModel):
    """The text of a user's message."""

    type: Literal["input_text"] = "input_text"
    text: str


class UserMessage(BaseModel):
    """What a user said."""

    type: Literal["message"] = "message"
    id: str
    role: Literal["user"] = "user"
    status: ItemStatus = "completed"
    content: list[InputText]


class ItemList(BaseModel):
    """A page of items."""

    object: Literal["list"] = "list"
    data: list[UserMessage | Item]
    first_id: str
    """Empty if there are none, as `last_id`: OpenAI's clients have no null there."""
    last_id: str
    has_more: bool


class InputDetails(BaseModel):
    """Of the tokens that were read."""

    cached_tokens: int = 0
    cache_write_tokens: int = 0


class OutputDetails(BaseModel):
    """Of the tokens that were written."""

    reasoning_tokens: int = 0


class Usage(BaseModel):
    """The tokens of all models' answers in the turn."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class Failure(BaseModel):
    """Why a response failed."""

    code: str
    """The kernel's code."""
    message: str


class Incomplete(BaseModel):
    """Why a response is not whole."""

    reason: Literal["max_output_tokens", "content_filter"]


class Named(BaseModel):
    """A conversation."""

    id: str


class TextConfig(BaseModel):
    """How text is written."""

    format: JsonObject = Field(default_factory=lambda: JsonObject(type="text"))
    """Its type, and of `json_schema` name and schema."""
    verbosity: str | None = None


class ReasoningConfig(BaseModel):
    """How much the models think."""

    effort: str | None = None


class Response(BaseModel):
    """A turn as a response."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: Status
    background: bool = False
    completed_at: int | None = None
    error: Failure | None = None
    incomplete_details: Incomplete | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    model: str
    output: list[Item] = Field(default_factory=list[Item])
    conversation: Named | None = None
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    prompt_cache_key: str | None = None
    reasoning: ReasoningConfig | None = None
    safety_identifier: str | None = None
    store: bool = True
    """As it was asked for; it is kept as any turn is."""
    temperature: float | None = None
    text: TextConfig = TextConfig()
    tool_choice: Literal["auto"] = "auto"
    tools: list[JsonObject] = Field(default_factory=list[JsonObject])
    """The functions of the client; an agent's own tools are the project's."""
    top_p: float | None = None
    truncation: Literal["disabled"] = "disabled"
    usage: Usage | None = None
    user: str | None = None
    metadata: dict[str, str] = Field(default_factory=dict[str, str])


class StreamEvent(BaseModel):
    """An event of a response's stream; fields that its type does not have are left out."""

    type: str
    sequence_number: int
    response: Response | None = None
    output_index: int | None = None
    item: Item | None = None
    item_id: str | None = None
    content_index: int | None = None
    part: OutputText | None = None
    delta: str | None = None
    text: str | None = None
    logprobs: list[str] | None = None
    name: str | None = None
    arguments: str | None = None

    def frame(self) -> bytes:
        """As a server-sent event."""
        names = {name for name in type(self).model_fields if getattr(self, name) is not None}
        return f"event: {self.type}\ndata: {self.model_dump_json(include=names)}\n\n".encode("utf-8", "replace")
