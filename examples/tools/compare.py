"""A tool that asks agents: two look at a topic at once, and a third judges what they said.

The agent that calls it needs `delegation_policy: {target_profiles: [advocate, critic, judge]}` in its profile.

python examples/tools/compare.py
"""

from turnstile import ChildTask, ToolCall, ToolService

service = ToolService()


@service.tool(target="research", suffix="compare", timeout_seconds=110)
async def compare(topic: str, call: ToolCall) -> dict[str, object]:
    """Let an advocate and a critic look at a topic, and a judge decide.

    topic: What to look at.
    """
    sides = [ChildTask(profile=side, instruction=topic, label=side) for side in ("advocate", "critic")]
    views = await call.fork(sides, join="all", deadline_seconds=60)
    lines = "\n".join(f"{view.label}: {view.summary or view.error}" for view in views.results)
    judge = await call.delegate(f"Who is right?\n{lines}", profile="judge")
    return {"verdict": judge.value, "status": judge.status}


if __name__ == "__main__":
    service.main()
