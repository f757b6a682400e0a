"""`turnstile demo-tree`: agents that ask other agents, as a live tree, without a key or a network.

A researcher forks three searchers and waits for all. One of them forks two readers and takes the first answer, one
fails, and the researcher goes on with what there is. At the end nothing runs any more.
"""

from pathlib import Path

from turnstile.cli.demo.demo_servers import add_demo_agent, run_with_own_servers
from turnstile.cli.errors import REFUSED
from turnstile.cli.session import Session
from turnstile.cli.turns.asking import EnqueueArguments, enqueue, request_of
from turnstile.cli.turns.turn_report import link_of, print_deliverable, read_report
from turnstile.cli.turns.turn_tree import show_tree
from turnstile.schema import verbs
from turnstile.schema.delegation.policy import DelegationPolicy
from turnstile.schema.profiles import LlmConfig, Profile
from turnstile.schema.wire.roster_requests import ProfilePutRequest

MODELS = Path(__file__).with_name("tree_scripts.py")
QUESTION = "How do turns of agents survive a crash?"
_INTERVAL_SECONDS = 0.1


def tree_profiles() -> tuple[Profile, ...]:
    """The researcher, which is asked, and those that are asked by others."""
    return (
        _profile("researcher", "Let searchers look, and write down what they found.", asks=["searcher"]),
        _profile("searcher", "Look where you are told; ask readers about books.", asks=["reader"]),
        _profile("reader", "Read, and answer in a sentence."),
    )


def _profile(name: str, prompt: str, *, asks: list[str] | None = None) -> Profile:
    return Profile(
        name=name,
        tags=["demo"],
        system_prompt_template=prompt,
        allowed_tools=["fork_join"] if asks else [],
        delegation_policy=DelegationPolicy(target_profiles=asks) if asks else None,
        max_steps=4,
        llm_config=LlmConfig(model=f"scripted/tree_{name}"),
    )


async def run_demo_tree(session: Session, *, keep: bool) -> None:
    """Run the demo; with `keep` stay up until stopped. Raises what `run_up` raises."""
    model = session.settings.model
    settings = session.settings.model_copy(
        update={"model": model.model_copy(update={"scripts": [*model.scripts, MODELS]})}
    )
    await run_with_own_servers(session, settings, lambda inner: _play(inner, keep=keep), keep=keep)


async def _play(session: Session, *, keep: bool) -> None:
    out = session.out
    first, *others = tree_profiles()
    async with session.client() as client:
        await session.await_bridge(client.bridge)
        for profile in others:
            await client.bridge.call(verbs.PROFILE_PUT, ProfilePutRequest(profile=profile))
        await add_demo_agent(client.bridge, first)
        if not out.as_json:
            out.line(f"\nenqueue {first.name} {QUESTION!r}", style="bold")
        request = client.ask_for(request_of(EnqueueArguments(first.name, QUESTION)))
        await enqueue(session, client, request)
        turn = await request.start()
        await show_tree(session, turn, follow=True, interval=_INTERVAL_SECONDS)
        report = await read_report(session, client, turn)
    if report.turn.status != "success":
        session.exit_code = REFUSED
    if out.as_json:
        return
    out.line()
    print_deliverable(out, report)
    out.line(f"turnstile turn tree {turn}", style="dim")
    if link := link_of(session, turn):
        out.line(f"in Temporal: {link}", style="dim")
    if not keep:
        out.remark("the link works while it is up: `turnstile demo-tree --keep` stays up")
