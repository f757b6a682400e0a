"""The `openai-agents` package over chat completions: a function tool and an output type, in two turns."""

from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI
from typed_answers import GOOD, REPAIRS, SUBMITS, WEATHER, Order, equal, plays, run, weather

set_tracing_disabled(True)


async def converse(client: AsyncOpenAI, profile: str) -> None:
    """The first calls the function, the second reads that and answers after two answers that were wrong."""
    model = OpenAIChatCompletionsModel(model=profile, openai_client=client)
    agent = Agent(name="asker", model=model, tools=[function_tool(weather)], output_type=Order)
    first = await Runner.run(agent, plays(WEATHER, SUBMITS))
    equal(first.final_output, GOOD)
    equal([item.type for item in first.new_items], ["tool_call_item", "tool_call_output_item", "message_output_item"])
    second = await Runner.run(agent, [*first.to_input_list(), {"role": "user", "content": REPAIRS}])
    equal(second.final_output, GOOD)


run(converse)
