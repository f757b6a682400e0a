"""An agent of LangGraph whose model is asked once for each answer, whatever becomes of the process.

pip install turnstile-kernel langgraph langchain-openai
python examples/agents/langgraph_agent.py --project demo --put && turnstile agent add clerk --profile clerk
OPENAI_API_KEY=sk-… python examples/agents/langgraph_agent.py --project demo
"""

import os
from typing import Any

from langchain_core.messages import AIMessage, SystemMessage, ToolMessage
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph

from turnstile import ToolCall, ToolService, Used

MODEL = os.environ.get("MODEL", "gpt-4o-mini")
NOTE = {"name": "note", "description": "Note a text.", "parameters": {
    "type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}}  # fmt: skip
service = ToolService()


def clerk(call: ToolCall) -> Any:
    """A loop of two nodes, the model and its tool; what each does is a step of the call."""
    model = ChatOpenAI(model=MODEL).bind_tools([{"type": "function", "function": NOTE}])
    system = SystemMessage("You are a clerk. Note what you are told.")

    async def think(state: MessagesState) -> dict[str, Any]:
        async def ask() -> Used[Any]:
            answer = await model.ainvoke([system, *state["messages"]])
            used = answer.usage_metadata or {"total_tokens": 0, "output_tokens": 0}
            return Used(answer.model_dump(mode="json"), MODEL, used["total_tokens"], written=used["output_tokens"])

        return {"messages": [AIMessage(**await call.step(f"model/{len(state['messages'])}", ask))]}

    async def act(state: MessagesState) -> dict[str, Any]:
        done: list[ToolMessage] = []
        for made in state["messages"][-1].tool_calls:
            result = await call.step(f"note/{made['id']}", lambda made=made: f"noted: {made['args']['text']}")
            done.append(ToolMessage(result, tool_call_id=made["id"]))
        return {"messages": done}

    def after(state: MessagesState) -> str:
        return "act" if state["messages"][-1].tool_calls else "__end__"

    graph = StateGraph(MessagesState).add_node("think", think).add_node("act", act)
    graph.add_edge(START, "think").add_conditional_edges("think", after).add_edge("act", "think")
    return graph.compile()


@service.agent(name="clerk")
async def answer(instruction: str, call: ToolCall) -> str:
    """Answer, and note what is said."""
    state = await clerk(call).ainvoke({"messages": [("user", instruction)]})
    return str(state["messages"][-1].content)


if __name__ == "__main__":
    service.main()
