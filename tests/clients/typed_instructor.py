"""The `instructor` package, in the ways that it has of asking for a value."""

import instructor
from openai import AsyncOpenAI
from typed_answers import GOOD, REPAIRS, Order, calls, equal, plays, run

WAYS = {
    instructor.Mode.JSON_SCHEMA: REPAIRS,
    instructor.Mode.JSON: REPAIRS.replace('"id": "7"', '"id": 7, "lines": ["bread"]'),
    instructor.Mode.TOOLS: plays(calls("Order", GOOD.model_dump())),
}
"""What the model plays for each; the mode JSON asks for any object, so that its first one counts."""


async def converse(client: AsyncOpenAI, profile: str) -> None:
    """One answer in each way."""
    for mode, instruction in WAYS.items():
        asked = [{"role": "user", "content": instruction}]
        patched = instructor.from_openai(client, mode=mode)
        answer = await patched.chat.completions.create(model=profile, messages=asked, response_model=Order)
        equal(answer.model_dump(), GOOD.model_dump())  # the package makes a class of its own of it


run(converse)
