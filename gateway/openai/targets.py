"""What OpenAI's clients call a model: an agent or a profile (`gateway/addressed.py`), and their errors about it."""

from collections.abc import Generator
from contextlib import contextmanager

from turnstile.gateway.addressed import GONE, TARGET_LIMIT, Target, look_up
from turnstile.gateway.http.problems import UnknownModel
from turnstile.ledger.pool import Pool
from turnstile.schema.errors import Refused
from turnstile.schema.ids import ProjectId


async def find_target(pool: Pool, project: ProjectId, model: str) -> Target:
    """The agent or profile of this name that takes turns; raises `UnknownModel`."""
    target = await look_up(pool, project, model)
    if target is None:
        raise _unknown_model(model)
    return target


@contextmanager
def known_model(model: str) -> Generator[None]:
    """Around an enqueue: a target that has gone meanwhile is an `UnknownModel`."""
    try:
        yield
    except Refused as error:
        if error.code not in GONE:
            raise
        raise _unknown_model(model) from None


def _unknown_model(model: str) -> UnknownModel:
    name = model if len(model) <= TARGET_LIMIT and model.isprintable() else "…"
    return UnknownModel(f"the model {name!r} does not exist: name an agent, or profile:NAME", "model")
