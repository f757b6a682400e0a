"""Warnings about unknown names in a stored profile, each with the nearest known name. Refuses nothing.

They are warnings only: a tool may be stored after the profile that names it, braces may be literal, and only the worker
knows all providers and models.
"""

from collections.abc import Collection, Iterator
from difflib import get_close_matches
from itertools import chain, islice

from turnstile.schema.profiles import PROMPT_PLACEHOLDERS, Profile, placeholders
from turnstile.schema.tools import ASK_HUMAN, PMO_TOOLS, SUBMIT_RESULT, PmoTool

_PROVIDERS = (
    *("scripted", "openai", "anthropic", "gemini", "mistral", "groq", "deepseek", "openrouter", "azure", "bedrock"),
    *("vertex_ai", "cohere", "xai", "together_ai", "fireworks_ai", "perplexity", "huggingface", "cerebras"),
    *("ollama", "ollama_chat", "hosted_vllm", "lm_studio", "llamafile"),
)
"""The most common providers. The worker knows many more, so only a name close to one of these causes a warning."""
_SIMILARITY = 0.8
_MOST = 10
"""Warnings, since each may compare a name with all that are known; a bridge answers others meanwhile."""
_LONGEST_NAME, _MOST_NAMES = 64, 100
"""What is compared: names so long, so many of them."""
_CONVENTIONAL = ("ui_worker", "sandbox")
"""Served by programs that do not sign on."""


def profile_warnings(
    profile: Profile, tools: Collection[str], targets: Collection[str], *, priced: bool, answer_tokens: int
) -> list[str]:
    """A sentence for each unknown tool, placeholder, provider or worker target, and for a budget that nothing fits.

    `tools` are the project's, `targets` those that workers serve; `priced`: whether the model has a price.
    `answer_tokens` are reserved for an answer whose profile does not say how many.
    """
    warnings = chain(
        _not_obeyed(profile),
        _limits(profile, answer_tokens),
        _price(profile, priced=priced),
        _target(profile, {*targets, *_CONVENTIONAL}),
        _models(profile),
        _placeholders(profile),
        _tools(profile, tools),
    )
    first = list(islice(warnings, _MOST))
    return [*first, *(["there are more warnings: mend these first"] if next(warnings, None) is not None else [])]


def _not_obeyed(profile: Profile) -> Iterator[str]:
    """Keys of CommonGround v1r4 that change nothing here."""
    ignored = [] if profile.llm_config is None else profile.llm_config.not_obeyed()
    if ignored:
        yield f"kept and not obeyed: {', '.join(key[:_LONGEST_NAME] for key in ignored[:_MOST_NAMES])}"


def _tools(profile: Profile, tools: Collection[str]) -> Iterator[str]:
    tools = {*tools, *PMO_TOOLS, ASK_HUMAN}  # which the kernel offers without a row
    allowed = profile.allowed_tools or ()
    asks = sorted(PMO_TOOLS.intersection(allowed) - {PmoTool.WAKE_ME})
    if asks and profile.delegation_policy is None:
        yield f"without a delegation_policy every call of {asks[0]} is refused"
    ending = {*tools, SUBMIT_RESULT}
    unknown = [name for name in dict.fromkeys(allowed) if name not in ending]
    if unknown:
        names = ", ".join(f"{name[:_LONGEST_NAME]!r}{_nearest(name, tools)}" for name in unknown[:_MOST])
        more = f", and {len(unknown) - _MOST} more" if len(unknown) > _MOST else ""
        yield f"allowed_tools names what is not a tool of the project yet: {names}{more}"
    for name in dict.fromkeys(profile.end_tools):
        if name not in ending and name not in unknown:
            yield f"must_end_with names {name!r}, which is not a tool of the project yet{_nearest(name, ending)}"
        elif name in ending and name != SUBMIT_RESULT and not profile.allows(name):
            yield f"must_end_with names {name!r}, which allowed_tools does not offer"
    if profile.run_by is not None and profile.run_by not in tools:
        near = _nearest(profile.run_by, tools)
        yield f"run_by names {profile.run_by!r}, which is not a tool of the project yet{near}"
    for name in profile.interrupt_on:
        if name != profile.run_by and not profile.allows(name):
            near = _nearest(name, allowed)
            yield f"interrupt_on names {name!r}, which allowed_tools does not offer{near}"


def _placeholders(profile: Profile) -> Iterator[str]:
    for name in sorted(placeholders(profile.system_prompt_template) - PROMPT_PLACEHOLDERS):
        yield f"{{{name}}} is no placeholder, so the prompt contains it literally{_nearest(name, PROMPT_PLACEHOLDERS)}"


def _models(profile: Profile) -> Iterator[str]:
    if profile.llm_config is None:
        return
    yield from _model("model", profile.llm_config.model)
    for model in profile.llm_config.fallbacks:
        yield from _model("fallbacks", model)
    if profile.memory is not None and profile.memory.summary_model is not None:
        yield from _model("summary_model", profile.memory.summary_model)


def _limits(profile: Profile, answer_tokens: int) -> Iterator[str]:
    """What of its budget lets no turn run; `answer_tokens` are reserved where the profile does not say how many."""
    limits = {} if profile.budget is None else profile.budget.stored()
    for name, value in limits.items():
        if value == 0:
            yield f"its budget has {name} 0, which is nothing: a turn without a budget of its own is refused"
    config = profile.llm_config
    most, answer = limits.get("max_tokens", 0), (config and config.max_tokens) or answer_tokens
    if 0 < most <= answer:
        yield f"its budget has {most} tokens, and every answer reserves {answer}: lower llm_config.max_tokens"


def _price(profile: Profile, *, priced: bool) -> Iterator[str]:
    """Whether its cost is limited, and its model has no price."""
    if profile.budget is not None and profile.budget.max_cost and not priced and profile.llm_config is not None:
        model = profile.llm_config.model
        yield f"its budget limits the cost, and {model!r} has no price: its turns fail as unpriced_model"


def _target(profile: Profile, served: Collection[str]) -> Iterator[str]:
    target = profile.worker_target
    if target not in served:
        yield f"no worker serves the worker_target {target!r}, so its turns wait{_nearest(target, served)}"


def _model(key: str, model: str) -> Iterator[str]:
    provider, slash, name = model.partition("/")
    if not slash:
        yield f"the {key} {model!r} names no provider: write provider/model, as in openai/gpt-4o"
    elif provider not in _PROVIDERS and (
        near := get_close_matches(provider[:_LONGEST_NAME], _PROVIDERS, n=1, cutoff=_SIMILARITY)
    ):
        yield f"the {key} names no known provider ({provider!r}); did you mean '{near[0]}/{name}'?"


def _nearest(name: str, known: Collection[str]) -> str:
    """The hint that names the most similar one; none for long names, with which the comparison takes long."""
    if len(name) > _LONGEST_NAME:
        return ""
    near = get_close_matches(name, [k for k in islice(known, _MOST_NAMES) if len(k) <= _LONGEST_NAME], n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
