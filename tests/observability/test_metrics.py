"""What Prometheus is told by worker, bridge and the Temporal SDK; and that the dashboard asks for nothing else."""

import asyncio
import json
import re
from typing import Any, cast
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.observability.tools import a_tool
from tests.sdk.tools.stack import Call, Stack, fresh
from tests.support.ledger.agents import ALICE, BOB, add_agents, ask
from tests.support.paths import ROOT
from turnstile.embedded.ports import free_port
from turnstile.ledger.operations.monitor import Backlog, InboxLag, Spending, measure_inbox
from turnstile.ledger.pool import Pool
from turnstile.processes.run import run_bridge
from turnstile.runtime.telemetry import Metric
from turnstile.schema.errors import ConfigError, ServerUnavailable
from turnstile.settings.model import ObservabilitySettings
from turnstile.telemetry.metrics import LABEL_LIMIT, MEANINGS, OTHER, PrometheusMeter, serving_metrics

DASHBOARD = ROOT / "docs" / "grafana" / "turnstile.json"
PAGE = ROOT / "docs" / "observability.md"
GAUGES = {
    *("turnstile_inbox_rows", "turnstile_inbox_lag_seconds", "turnstile_threads_open"),
    *("turnstile_project_tokens", "turnstile_project_dollars"),
}
TRAFFIC = {"turnstile_database_round_trips_total", "turnstile_nats_messages_total"}

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


async def scrape(port: int) -> tuple[str, Samples]:
    """What is served there: its text, and its values by name and labels."""

    def get() -> str:
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            return cast("bytes", answer.read()).decode()

    text = await asyncio.to_thread(get)
    families = text_string_to_metric_families(text)
    return text, {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float:
    """A value; 0 if it is not there."""
    return samples.get((f"turnstile_{name}", frozenset(labels.items())), 0.0)


async def test_worker_and_bridge_tell_their_figures(stack: Stack, told: dict[str, ObservabilitySettings]) -> None:
    service, name = a_tool(fresh("count"))
    agent = await stack.register(*service.definitions())
    async with stack.serving(service):
        played = await stack.play(agent, Call(name, {"text": "one two"}))
    assert played.event.status == "success"
    _, worker = await scrape(told["worker"].metrics_port)
    text, bridge = await scrape(told["bridge"].metrics_port)
    model = "scripted/caller"
    assert value(worker, "turns_total", status="success", error_code="none") >= 1
    assert value(worker, "tool_calls_total") >= 1
    assert value(worker, "model_attempts_total", model=model, error_code="none") >= 2
    assert value(worker, "model_tokens_total", model=model, direction="input") > 0
    assert value(worker, "model_tokens_total", model=model, direction="output") > 0
    for histogram in ("seconds", "queue_delay_seconds", "dispatched_seconds", "suspended_seconds"):
        assert value(worker, f"turn_{histogram}_count") >= 1, histogram
        assert 0 <= value(worker, f"turn_{histogram}_sum") < 60, histogram
    assert value(worker, "step_seconds_count", status="completed") >= 2
    assert value(bridge, "claims_total", verdict="start") >= 1
    assert value(bridge, "claims_total", verdict="signal") >= 1
    for verb in ("enqueue", "describe", "report"):
        assert value(bridge, "verbs_total", verb=verb, status="accepted") >= 1
        assert value(bridge, "verb_seconds_count", verb=verb) >= 1
    assert value(bridge, "tool_reports_total", status="success") >= 1
    assert value(bridge, "inbox_lag_seconds") < 60
    for role in (worker, bridge):
        assert value(role, "database_round_trips_total") >= 3
        for direction in ("out", "in"):
            assert value(role, "nats_messages_total", direction=direction) >= 2
    assert "# TYPE turnstile_inbox_rows gauge" in text
    assert agent not in text
    assert 'project="' not in text


async def test_refusals_are_counted(stack: Stack, told: dict[str, ObservabilitySettings]) -> None:
    _, before = await scrape(told["bridge"].metrics_port)
    reply = await stack.client.request("enqueue", cast("Any", {"agent_id": "nobody", "instruction": "x"}))
    assert reply["status"] == "rejected"
    _, after = await scrape(told["bridge"].metrics_port)
    labels = {"verb": "enqueue", "status": "rejected"}
    assert value(after, "verbs_total", **labels) == value(before, "verbs_total", **labels) + 1


@pytest.mark.parametrize("role", ["worker", "bridge"])
async def test_the_temporal_sdk_tells_its_own(stack: Stack, told: dict[str, ObservabilitySettings], role: str) -> None:
    text, _ = await scrape(told[role].temporal_metrics_port)
    assert "temporal_request" in text
    assert stack.endpoints.temporal_namespace in text


async def test_a_port_that_is_taken_is_an_error_that_names_the_setting() -> None:
    port = free_port()
    async with serving_metrics("127.0.0.1", port):
        with pytest.raises(ConfigError, match=rf"metrics_port: 127\.0\.0\.1:{port} cannot be served"):
            async with serving_metrics("127.0.0.1", port):
                pass
    async with serving_metrics("127.0.0.1", port):
        pass


async def test_so_is_a_port_of_the_sdk(stack: Stack, told: dict[str, ObservabilitySettings]) -> None:
    taken = told["worker"].model_copy(update={"metrics_port": 0})
    settings = stack.settings.model_copy(update={"observability": taken})
    with pytest.raises(ConfigError, match=r"temporal_metrics_port: .* cannot be served"):
        await run_bridge(settings, stack.endpoints, asyncio.Event())


async def test_a_ledger_that_is_away_leaves_the_rest() -> None:
    looks: list[int] = []

    async def look() -> Backlog:
        looks.append(1)
        raise ServerUnavailable("away")

    port = free_port()
    async with serving_metrics("127.0.0.1", port, query=look) as meter:
        meter.count(Metric.REPAIRS, 3, rule="doorbell")
        await asyncio.gather(*(scrape(port) for _ in range(3)))
        text, samples = await scrape(port)
    assert value(samples, "repairs_total", rule="doorbell") == 3
    assert "turnstile_inbox_lag_seconds 0" not in text
    assert len(looks) == 1  # once an interval, however many scrape


async def test_what_projects_have_spent_is_told_as_a_sum() -> None:
    sums = {"max_tokens": 100, "spent_tokens": 40, "reserved_tokens": 10, "unsettled_tokens": 5}
    money = {"max_cost": 2_000_000, "spent_cost": 500_000, "reserved_cost": 0, "unsettled_cost": 1}
    spending = Spending.model_validate({"period": "day", **sums, **money})

    async def look() -> Backlog:
        return Backlog(
            InboxLag.model_validate({"rows": "{}", "tried_again": "{}", "oldest_due_seconds": 0}), 0, [spending]
        )

    port = free_port()
    async with serving_metrics("127.0.0.1", port, query=look):
        _, samples = await scrape(port)
    assert value(samples, "project_tokens", period="day", part="spent") == 40
    assert value(samples, "project_dollars", period="day", part="max") == 2
    assert value(samples, "project_dollars", period="day", part="unsettled") == 0.000001


def test_no_label_is_without_a_bound() -> None:
    meter = PrometheusMeter()
    for number in range(LABEL_LIMIT + 50):
        meter.count(Metric.TURNS, status="failed", error_code=f"code-{number}", project=f"p{number}", agent="a")
        meter.observe(Metric.MODEL_SECONDS, 1, model=f"model-{number}")
    codes = [
        sample
        for family in meter.registry.collect()
        for sample in family.samples
        if sample.name == "turnstile_turns_total"
    ]
    assert len(codes) == LABEL_LIMIT + 1
    assert next(sample.value for sample in codes if sample.labels["error_code"] == OTHER) == 50
    assert all(set(sample.labels) == {"status", "error_code"} for sample in codes)


def test_project_and_agent_are_labels_where_they_are_asked_for() -> None:
    meter = PrometheusMeter(["project"])
    meter.count(Metric.TURNS, status="success", error_code="none", project="p1", agent="alice")
    labels = {"status": "success", "error_code": "none", "project": "p1"}
    assert meter.registry.get_sample_value("turnstile_turns_total", labels) == 1


async def test_the_lag_is_that_of_the_served_targets(pool: Pool) -> None:
    await add_agents(pool, ALICE)
    await add_agents(pool, BOB, worker_target="elsewhere")
    assert (await pool.run(measure_inbox)).rows == {}
    for agent in (ALICE, ALICE, BOB):
        await ask(pool, agent)
    both = await pool.run(measure_inbox)
    mine = await pool.run(lambda conn: measure_inbox(conn, ["worker_generic"]))
    assert both.rows == {"pending": 2, "queued": 1}
    assert mine.rows == {"pending": 1, "queued": 1}
    assert 0 < mine.oldest_due_seconds < 60


def exported() -> set[str]:
    """The names of all series that worker, bridge and tools can export."""
    names = GAUGES | TRAFFIC
    for metric, meaning in MEANINGS.items():
        name = f"turnstile_{metric}"
        if meaning.buckets:
            names |= {f"{name}_{part}" for part in ("bucket", "sum", "count")}
        else:
            names.add(name if meaning.gauge else f"{name}_total")
    return names


def test_every_metric_has_its_meaning() -> None:
    assert set(MEANINGS) == set(Metric)


def test_the_dashboard_asks_for_what_is_exported() -> None:
    board = json.loads(DASHBOARD.read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    words = {name for query in queries for name in re.findall(r"[a-z]+_[a-z_]+", query)}
    asked = words - {"histogram_quantile", "__rate_interval", "rate_interval"}
    asked -= {label for meaning in MEANINGS.values() for label in meaning.labels}
    assert len(queries) >= 12
    assert asked <= exported()
    assert {name for name in exported() if name.startswith("turnstile_thread")} & asked


def test_the_alerts_ask_for_what_is_exported() -> None:
    alerts = PAGE.read_text().partition("### Alerts")[2].partition("```yaml")[2].partition("```")[0]
    asked = set(re.findall(r"turnstile_[a-z_]+", alerts))
    assert len(asked) >= 6
    assert asked <= exported()


def test_the_page_has_every_metric_and_setting() -> None:
    page = PAGE.read_text()
    missing = [
        name for name in (*GAUGES, *TRAFFIC, *(f"turnstile_{each}" for each in Metric)) if f"`{name}" not in page
    ]
    missing += [name for name in ObservabilitySettings.model_fields if f"`{name}`" not in page]
    assert missing == []
