"""An agent of the OpenAI Agents SDK whose model is asked once for each answer, whatever becomes of the process.

pip install turnstile-kernel openai-agents
python examples/agents/openai_agents_agent.py --project demo --put && turnstile agent add clerk --profile clerk
OPENAI_API_KEY=sk-… python examples/agents/openai_agents_agent.py --project demo
"""

import os
from typing import Any

from agents import Agent, ModelResponse, RunConfig, Runner, function_tool
from agents.models.openai_chatcompletions import OpenAIChatCompletionsModel
from agents.tool_context import ToolContext
from openai import AsyncOpenAI
from pydantic import TypeAdapter

from turnstile import ToolCall, ToolService, Used

MODEL = os.environ.get("MODEL", "gpt-4o-mini")
RESPONSE = TypeAdapter(ModelResponse)
service = ToolService()


class StepModel(OpenAIChatCompletionsModel):
    """Each request of the agent's loop is a step of the call; the order of requests is the same in every run."""

    def __init__(self, call: ToolCall) -> None:
        super().__init__(MODEL, AsyncOpenAI())
        self.call, self.asked = call, 0

    async def get_response(self, *arguments: Any, **options: Any) -> ModelResponse:
        """The recorded answer, or the model's."""
        self.asked += 1

        async def ask() -> Used[Any]:
            answer = await super(StepModel, self).get_response(*arguments, **options)
            used = answer.usage
            return Used(RESPONSE.dump_python(answer, mode="json"), MODEL, used.total_tokens, written=used.output_tokens)

        return RESPONSE.validate_python(await self.call.step(f"model/{self.asked}", ask))


@function_tool
async def note(context: ToolContext[ToolCall], text: str) -> str:
    """Note a text."""
    return await context.context.step(f"note/{context.tool_call_id}", lambda: f"noted: {text}")


clerk = Agent[ToolCall](name="clerk", instructions="You are a clerk. Note what you are told.", tools=[note])


@service.agent(name="clerk")
async def answer(instruction: str, call: ToolCall) -> str:
    """Answer, and note what is said."""
    run = RunConfig(model=StepModel(call), tracing_disabled=True)
    return str((await Runner.run(clerk, instruction, context=call, run_config=run)).final_output)


if __name__ == "__main__":
    service.main()
