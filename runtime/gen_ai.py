"""Span attributes by OpenTelemetry's GenAI conventions (docs/observability.md, spans). Pure.

The names are those of semantic conventions 1.41, the last version that OpenTelemetry's packages of all languages have;
tests compare them. Attributes here hold names, numbers and codes; `turnstile.runtime.span_content` makes those that
hold what was said.
"""

from collections.abc import Mapping
from typing import Final, cast
from urllib.parse import urlsplit

from turnstile.schema.base import JsonObject
from turnstile.schema.wire import headers

Attribute = str | int | float | bool | tuple[str, ...]
Attributes = dict[str, Attribute]

SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.41.0"
KERNEL: Final = "turnstile"
"""The provider of a turn that asked no model."""
OTHER: Final = "_OTHER"
_PROVIDERS: Final = {
    "azure": "azure.ai.openai",
    "azure_ai": "azure.ai.inference",
    "bedrock": "aws.bedrock",
    "bedrock_converse": "aws.bedrock",
    "gemini": "gcp.gemini",
    "vertex_ai": "gcp.vertex_ai",
    "mistral": "mistral_ai",
    "watsonx": "ibm.watsonx.ai",
    "xai": "x_ai",
}
"""The conventions' names of providers that litellm names otherwise."""
_COUNTS: Final = {
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "completion_tokens": "gen_ai.usage.output_tokens",
    "cached_tokens": "gen_ai.usage.cache_read.input_tokens",
    "cache_creation_tokens": "gen_ai.usage.cache_creation.input_tokens",
    "reasoning_tokens": "gen_ai.usage.reasoning.output_tokens",
}
_PARAMETERS: Final[dict[str, type[int] | type[float]]] = {
    "max_tokens": int,
    "seed": int,
    "top_k": float,
    "temperature": float,
    "top_p": float,
    "frequency_penalty": float,
    "presence_penalty": float,
}
_PORTS: Final = {"http": 80, "https": 443}


def operation(name: str, subject: str = "") -> tuple[str, Attributes]:
    """The name and the first attribute of a span: `chat gpt-4o`; without a subject the operation alone."""
    return f"{name} {subject}".rstrip(), {"gen_ai.operation.name": name}


def agent(agent_id: str, name: str = "") -> Attributes:
    """Who works: the agent, and the profile by whose name people know it; the name is left out if it is unknown."""
    return {"gen_ai.agent.id": agent_id, **({"gen_ai.agent.name": name} if name else {})}


def conversation(context: Mapping[str, str], otherwise: str | None) -> Attributes:
    """The conversation of these headers, else the other one; nothing if there is neither."""
    identifier = context.get(headers.CONVERSATION_ID) or otherwise
    return {"gen_ai.conversation.id": identifier} if identifier else {}


def tool(name: str, call: str) -> Attributes:
    """A tool and its call. All tools are the agent's own functions, wherever they run."""
    return {"gen_ai.tool.name": name, "gen_ai.tool.call.id": call, "gen_ai.tool.type": "function"}


def model_names(model: str) -> tuple[str, str]:
    """The provider and the model of `provider/model`, as the conventions name them."""
    provider, slash, name = model.partition("/")
    return (_PROVIDERS.get(provider, provider), name) if slash else (OTHER, model)


def requested(model: str, settings: Mapping[str, object]) -> Attributes:
    """The model, and those of the given parameters that the conventions name."""
    provider, name = model_names(model)
    attributes: Attributes = {
        "gen_ai.provider.name": provider,
        "gen_ai.request.model": name,
        "gen_ai.request.stream": True,
    }
    for parameter, kind in _PARAMETERS.items():
        if isinstance(value := settings.get(parameter), int | float) and not isinstance(value, bool):
            attributes[f"gen_ai.request.{parameter}"] = kind(value)
    if isinstance(stop := settings.get("stop"), list):
        attributes["gen_ai.request.stop_sequences"] = tuple(map(str, cast("list[object]", stop)))
    return attributes


def usage_attributes(counts: JsonObject) -> Attributes:
    """The tokens that a provider counted."""
    return {name: int(count) for key, name in _COUNTS.items() if isinstance(count := counts.get(key), int | float)}


def used(model: str, read: int, written: int) -> Attributes:
    """What a model used, as a program says that asked it."""
    provider, name = model_names(model)
    counts: JsonObject = {"prompt_tokens": read, "completion_tokens": written}
    return {"gen_ai.provider.name": provider, "gen_ai.request.model": name, **usage_attributes(counts)}


def server(base: str | None) -> Attributes:
    """The address and port of a base URL; nothing if it is unknown."""
    if base is None:
        return {}
    split = urlsplit(base)
    if split.hostname is None:
        return {}
    return {"server.address": split.hostname, "server.port": split.port or _PORTS.get(split.scheme, 0)}
