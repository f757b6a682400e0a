"""The `pydantic-ai` package: a tool, and an output type by the model's own format and by a tool of the package."""

from openai import AsyncOpenAI
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from typed_answers import GOOD, REPAIRS, SUBMITS, WEATHER, Order, calls, equal, plays, run, weather


async def converse(client: AsyncOpenAI, profile: str) -> None:
    """An answer that is mended, one after a call, and one as the arguments of a call."""
    model = OpenAIChatModel(profile, provider=OpenAIProvider(openai_client=client))
    plain = Agent(model, output_type=NativeOutput(Order))
    equal((await plain.run(REPAIRS)).output, GOOD)
    native = Agent(model, output_type=NativeOutput(Order), tools=[weather])
    equal((await native.run(plays(WEATHER, SUBMITS))).output, GOOD)
    by_tool = Agent(model, output_type=Order, tools=[weather])
    equal((await by_tool.run(plays(WEATHER, calls("final_result", GOOD.model_dump())))).output, GOOD)


run(converse)
