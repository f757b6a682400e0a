"""An agent of pydantic-ai whose model is asked once for each answer, whatever becomes of the process.

pip install turnstile-kernel 'pydantic-ai-slim[openai]'
python examples/agents/pydantic_ai_agent.py --project demo --put && turnstile agent add clerk --profile clerk
OPENAI_API_KEY=sk-… python examples/agents/pydantic_ai_agent.py --project demo
"""

import os
from typing import Any

from pydantic import TypeAdapter
from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.models.wrapper import WrapperModel

from turnstile import ToolCall, ToolService, Used

MODEL = os.environ.get("MODEL", "gpt-4o-mini")
RESPONSE = TypeAdapter(ModelResponse)
service = ToolService()


class StepModel(WrapperModel):
    """Each request of the agent's loop is a step of the call; the order of requests is the same in every run."""

    def __init__(self, call: ToolCall) -> None:
        super().__init__(OpenAIChatModel(MODEL))
        self.call, self.asked = call, 0

    async def request(self, *arguments: Any) -> ModelResponse:
        """The recorded answer, or the model's."""
        self.asked += 1

        async def ask() -> Used[Any]:
            answer = await self.wrapped.request(*arguments)
            used = answer.usage
            return Used(RESPONSE.dump_python(answer, mode="json"), MODEL, used.total_tokens, written=used.output_tokens)

        return RESPONSE.validate_python(await self.call.step(f"model/{self.asked}", ask))


clerk = Agent(deps_type=ToolCall, instructions="You are a clerk. Note what you are told.")


@clerk.tool
async def note(context: RunContext[ToolCall], text: str) -> str:
    """Note a text."""
    return await context.deps.step(f"note/{context.tool_call_id}", lambda: f"noted: {text}")


@service.agent(name="clerk")
async def answer(instruction: str, call: ToolCall) -> str:
    """Answer, and note what is said."""
    return (await clerk.run(instruction, model=StepModel(call), deps=call)).output


if __name__ == "__main__":
    service.main()
