"""The `langchain-openai` package: `with_structured_output` in both ways, and `bind_tools`."""

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI
from openai import AsyncOpenAI
from typed_answers import GOOD, REPAIRS, RETRIES, SUNNY, WEATHER, Order, calls, equal, plays, run, weather


async def converse(client: AsyncOpenAI, profile: str) -> None:
    """An answer that is mended, one as the arguments of a call, and a loop with a tool."""
    model = ChatOpenAI(
        model=profile, base_url=str(client.base_url), api_key=client.api_key, max_retries=RETRIES, timeout=120
    )
    equal(await model.with_structured_output(Order).ainvoke(REPAIRS), GOOD)
    by_tool = model.with_structured_output(Order, method="function_calling")
    equal(await by_tool.ainvoke(plays(calls("Order", GOOD.model_dump()))), GOOD)
    loop = model.bind_tools([weather])
    asked = HumanMessage(plays(WEATHER, {"text": SUNNY}))
    called = await loop.ainvoke([asked])
    outputs = [ToolMessage(weather(**call["args"]), tool_call_id=call["id"]) for call in called.tool_calls]
    equal((await loop.ainvoke([asked, called, *outputs])).content, SUNNY)


run(converse)
