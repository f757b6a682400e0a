"""What the safety net says of its repairs: a sentence for each, with ids, and no more than a few at a look."""

import pytest

from tests.support.paths import ROOT
from turnstile.bridge.safety.rules import WatchdogTimes
from turnstile.bridge.safety.watchdog import LINES, SENTENCES, sentences
from turnstile.ledger.operations.sweep import DueAgent
from turnstile.ledger.turns.lease import AgentKey
from turnstile.schema.ids import AgentId, AgentTurnId, ProjectId
from turnstile.schema.turns import TurnRef

MANUAL = ROOT / "docs" / "operations.md"
TIMES = WatchdogTimes()
AGENTS: list[AgentKey] = [(ProjectId("demo"), AgentId(f"agent-{number}")) for number in range(40)]


def test_few_lines_whatever_was_found() -> None:
    rows = [
        DueAgent(project_id=project, agent_id=agent, is_deferred=agent.endswith("1"), due_seconds=2 + number)
        for number, (project, agent) in enumerate(AGENTS)
    ]
    told = list(sentences("doorbell", rows, len(rows), TIMES))
    assert len(told) == LINES + 1
    assert told[0] == "agent demo/agent-0: a request was due for 2.0 s and no doorbell was heard; taken up"
    assert told[1] == "agent demo/agent-1: a deferred row was due for 3.0 s; taken up"
    assert told[-1] == "rule doorbell mended 35 more in this way"


def test_what_was_found_and_not_mended_is_not_said_to_be() -> None:
    [told] = sentences("doorbell", AGENTS, 3, TIMES)
    assert told.startswith("rule doorbell mended 3 of 40: demo/agent-0, demo/agent-1")


@pytest.mark.parametrize("rule", SENTENCES)
def test_a_sentence_can_be_said_of_anything_that_is_found(rule: str) -> None:
    turn = TurnRef.model_construct(
        project_id=ProjectId("demo"), agent_id=AgentId("helper"), agent_turn_id=AgentTurnId("t1")
    )
    for found in (AGENTS[0], turn):
        [told] = sentences(rule, [found], 1, TIMES)
        assert "{" not in told


def test_every_rule_of_the_manual_has_its_sentence() -> None:
    table = MANUAL.read_text(encoding="utf-8").split("| rule | mends |")[1].split("\n\n")[0]
    rules = {name for line in table.splitlines()[2:] for name in line.split("|")[1].replace(",", " ").split()}
    assert rules <= set(SENTENCES)
