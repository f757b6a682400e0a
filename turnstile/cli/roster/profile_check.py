"""Warnings about unknown names in a stored profile, each with the nearest known name. Refuses nothing.

They are warnings only: a tool may be stored after the profile that names it, braces may be literal, and only the worker
knows all providers and models.
"""

from collections.abc import Collection, Iterator
from difflib import get_close_matches

from turnstile.ledger.pool import Pool
from turnstile.ledger.turns.roster import list_tools
from turnstile.schema.errors import BadRequest
from turnstile.schema.ids import ProjectId
from turnstile.schema.profiles import PROMPT_PLACEHOLDERS, Profile, placeholders
from turnstile.schema.tools import SUBMIT_RESULT

_PROVIDERS = (
    *("scripted", "openai", "anthropic", "gemini", "mistral", "groq", "deepseek", "openrouter", "azure", "bedrock"),
    *("vertex_ai", "cohere", "xai", "together_ai", "fireworks_ai", "perplexity", "huggingface", "cerebras"),
    *("ollama", "ollama_chat", "hosted_vllm", "lm_studio", "llamafile"),
)
"""The most common providers. The worker knows many more, so only a name close to one of these causes a warning."""
_SIMILARITY = 0.8


async def profile_warnings(pool: Pool, project: ProjectId, profile: Profile) -> list[str]:
    """One sentence for each unknown tool, placeholder or provider."""
    try:
        tools = {row.tool_name for row in await list_tools(pool, project)}
    except BadRequest as error:
        return [str(error)]
    return [*_tools(profile, tools), *_placeholders(profile), *_model(profile)]


def _tools(profile: Profile, tools: Collection[str]) -> Iterator[str]:
    for name in profile.allowed_tools:
        if name not in tools and name != SUBMIT_RESULT:
            yield f"allowed_tools names {name!r}, which is no tool of the project yet{_nearest(name, tools)}"
    ending = {*tools, SUBMIT_RESULT}
    for name in profile.must_end_with:
        if name not in ending:
            yield f"must_end_with names {name!r}, which is no tool of the project yet{_nearest(name, ending)}"
        elif name != SUBMIT_RESULT and name not in profile.allowed_tools:
            yield f"must_end_with names {name!r}, which allowed_tools does not offer"


def _placeholders(profile: Profile) -> Iterator[str]:
    for name in sorted(placeholders(profile.system_prompt_template) - PROMPT_PLACEHOLDERS):
        yield f"{{{name}}} is no placeholder, so the prompt contains it literally{_nearest(name, PROMPT_PLACEHOLDERS)}"


def _model(profile: Profile) -> Iterator[str]:
    model = profile.llm_config.model
    provider, slash, name = model.partition("/")
    if not slash:
        yield f"the model {model!r} names no provider: write provider/model, as in openai/gpt-4o"
    elif provider not in _PROVIDERS and (near := get_close_matches(provider, _PROVIDERS, n=1, cutoff=_SIMILARITY)):
        yield f"no provider {provider!r} is known here; did you mean '{near[0]}/{name}'?"


def _nearest(name: str, known: Collection[str]) -> str:
    near = get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
