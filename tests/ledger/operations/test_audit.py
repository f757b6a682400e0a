"""The audit: a healthy ledger breaks no rule, and each way of breaking one is told by that rule, with its ids."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from string import Template
from typing import Any

import asyncpg
import pytest

from lab.bench.ledgers.ended_turns import fill
from tests.support.databases import Databases
from tests.support.ledger.agents import ALICE, PROJECT, add_agents, ask
from tests.support.ledger.healthy import make_healthy
from tests.support.ledger.invariants import violations
from tests.support.paths import ROOT
from tests.support.waiting import until_waiting
from turnstile.bridge.safety.engine_audit import LOST, OVER
from turnstile.ledger.operations.audit import (
    Bounds,
    Finding,
    Scope,
    Violation,
    arguments,
    audit,
    check_rules,
    rules,
    violation,
)
from turnstile.ledger.pool import Pool, Session
from turnstile.ledger.queries import query
from turnstile.schema.errors import ServerUnavailable
from turnstile.schema.ids import ProjectId, uuid7

HOURS = 3600.0
BOUNDS = Bounds(grace_seconds=HOURS, claim_seconds=HOURS, stranded_seconds=0, silent_seconds=HOURS)
LATE = "now() - interval '3 hours'"


@dataclass(frozen=True)
class Damage:
    """A statement that breaks a rule, the ids that it is then told with, and the rules that must follow."""

    rule: str
    sql: str
    ids: dict[str, str]
    others: set[str] = field(default_factory=set[str])


OUTCOME = "UPDATE state.turn_outcomes SET {} WHERE agent_turn_id = '$plain'"
COPY = (
    "INSERT INTO state.agent_inbox (inbox_id, correlation_id, project_id, agent_id, message_type, agent_turn_id,"
    " turn_epoch, context_headers, payload, status, next_retry_at, processed_at, archived_at, created_at,"
    " request_digest, enqueue_mode) SELECT 'copy', {} FROM state.agent_inbox WHERE inbox_id = '$plain_row'"
)
CARD = (
    "INSERT INTO cards (card_id, tenant_id, content, tool_call_id, metadata)"
    " VALUES ('$plain-x', 'p1', '{{}}', {}, '{}');"
)
ROW = "UPDATE state.agent_inbox SET {} WHERE {};"
PAUSE = (
    "UPDATE resource.project_agents SET status = 'paused' WHERE agent_id = '{0}';"
    "INSERT INTO state.identity_edges (edge_id, project_id, action, target_agent_id)"
    " VALUES ('x', 'p1', 'pause', '{0}');"
)
SCHEDULE = (
    "INSERT INTO resource.schedules (project_id, schedule_id, channel_id, owner, settings, timing, anchor_at,"
    " next_at, created_at) VALUES ('p1', 's', 'public', 'ada', '{{}}', '{{}}', now(), {}, '2020-01-01')"
)
FIRING = (
    "WITH made AS (INSERT INTO resource.schedules (project_id, schedule_id, channel_id, owner, settings, timing,"
    " anchor_at) VALUES ('p1', 's', 'public', 'ada', '{{}}', '{{}}', now()) RETURNING *)"
    " INSERT INTO state.schedule_firings (firing_id, project_id, schedule_id, nominal_at, agent_turn_id)"
    " SELECT 'f', project_id, schedule_id, now(), '{}' FROM made"
)
WAKE = (
    "INSERT INTO resource.schedules (project_id, schedule_id, channel_id, owner, settings, timing, anchor_at,"
    " waker_turn_id, root_turn_id, wake) SELECT 'p1', 's', 'public', coalesce(context_headers ->> 'CG-Sender', '') ||"
    " '{}', jsonb_build_object('agent_id', agent_id || '{}'), '{{}}', now(), '{}', '$plain', '{{}}'"
    " FROM state.agent_inbox WHERE inbox_id = '$plain_row'"
)
WOKEN = (
    ";INSERT INTO state.schedule_firings (firing_id, project_id, schedule_id, nominal_at, agent_turn_id)"
    " VALUES ('f', 'p1', 's', now(), '$plain')"
)
CORRELATED = (
    "UPDATE state.execution_edges SET correlation_id = 'schedule:s@1' WHERE edge_id = 'enqueue-$plain';"
    "UPDATE state.agent_inbox SET correlation_id = 'schedule:s@1' WHERE inbox_id = '$plain_row';"
)
AGED = ";UPDATE cards SET created_at = now() - interval '1 day' WHERE card_id = '$plain-x'"
CUT = "UPDATE cards SET content = jsonb_set(content, {}) WHERE card_id = '{}-s1-memory-cut'"
BATCH = "UPDATE state.pmo_batches SET {} WHERE parent_tool_call_id = '{}'"
TASK = "UPDATE state.pmo_batch_tasks SET {} WHERE current_agent_turn_id = '{}';"
NODE = "UPDATE state.turn_nodes SET {} WHERE agent_turn_id = '{}'"
ASKED = "UPDATE state.interrupts SET {} WHERE tool_call_id = '{}'"
_MANY_STEPS = """
UPDATE state.call_steps SET bytes = 524288;
INSERT INTO state.call_steps (project_id, agent_id, agent_turn_id, step_id, channel_id, tool_call_id, key, seq, value,
    bytes)
SELECT project_id, agent_id, agent_turn_id, step_id, channel_id, tool_call_id, 'k' || n, n, value, bytes
FROM state.call_steps, generate_series(3, 33) n WHERE key = 'plan'
"""
STEER = "UPDATE state.steers SET {} WHERE steer_id = '${}'"
RECEIVER = "UPDATE state.push_receivers SET {} WHERE agent_turn_id = '${}'"
BUDGET = "UPDATE state.budgets SET {} WHERE budget_id = '${}'"
PLACE = "INSERT INTO box_cards SELECT '{}', max(position) + 1, '{}' FROM box_cards WHERE box_id = '{}'"


NO_DEADLINE = "UPDATE state.turn_waiting_tools SET deadline = NULL WHERE agent_id = 'bob'"
TOLD_LATE = ROW.format(f"created_at = {LATE}", "correlation_id = 'told'")


def head(agent: str, change: str) -> str:
    return f"UPDATE state.agent_state_head SET {change} WHERE agent_id = '{agent}'"  # noqa: S608 -- constants of this test


def place(box: str, card: str) -> str:
    return PLACE.format(box, card, box)


DAMAGES = [
    Damage("one_active_turn", head("alice", "turn_epoch = 9"), {"agent_id": "alice", "agent_turn_id": "$running"}),
    Damage(
        "one_active_turn",
        head("dave", "active_agent_turn_id = '$running'"),
        {"agent_id": "dave", "agent_turn_id": "$running"},
        {"every_turn_is_somewhere", "heads_count_their_steps"},
    ),
    Damage(
        "one_head_a_box",
        "DROP INDEX state.head_output_box;" + head("dave", "output_box_id = '$running_box'"),
        {"box_id": "$running_box", "agent_id": "alice", "other_agent_id": "dave"},
        {"head_agrees_with_its_row"},
    ),
    Damage("head_agrees_with_its_row", head("alice", "trace_id = 'x'"), {"agent_turn_id": "$running"}),
    Damage(
        "begun_rows_are_final",
        "UPDATE state.agent_inbox SET status = 'pending', archived_at = NULL WHERE inbox_id = '$running_row'",
        {"agent_turn_id": "$running", "inbox_id": "$running_row"},
    ),
    Damage("idle_heads_hold_nothing", head("carol", "step_count = 1"), {"agent_id": "carol"}),
    Damage("restarts_are_bounded", head("alice", "restart_count = 4"), {"agent_turn_id": "$running"}),
    Damage(
        "no_outcome_in_hand",
        "INSERT INTO state.turn_outcomes (agent_turn_id, project_id, agent_id, channel_id, turn_epoch, inbox_id,"
        " status, deliverable_card_id, output_box_id, trace_id, started_at, announced_at)"
        " SELECT active_agent_turn_id, project_id, agent_id, 'public', turn_epoch, active_inbox_id, 'success', 'x',"
        " output_box_id, trace_id, now(), now() FROM state.agent_state_head WHERE agent_id = 'alice'",
        {"agent_turn_id": "$running"},
        {"every_turn_is_somewhere", "deliverable_in_its_box", "pointers_name_the_last_box"},
    ),
    Damage(
        "every_turn_is_somewhere",
        "DELETE FROM state.turn_outcomes WHERE agent_turn_id = '$plain'",
        {"agent_id": "alice", "agent_turn_id": "$plain"},
        {"an_ending_step_is_the_last"},
    ),
    Damage(
        "every_turn_is_somewhere",
        head(
            "dave",
            "status = 'idle', active_agent_turn_id = NULL, active_inbox_id = NULL, active_channel_id = NULL,"
            " context_box_id = NULL, output_box_id = NULL, profile_box_id = NULL, trace_id = NULL",
        ),
        {"agent_id": "dave", "agent_turn_id": "$leased"},
    ),
    Damage(
        "one_turn_a_row",
        COPY.format(
            "'copy', project_id, agent_id, message_type, agent_turn_id, 0, context_headers, payload, status,"
            " next_retry_at, processed_at, archived_at, created_at, 'x', 'call'"
        ),
        {"agent_turn_id": "$plain", "inbox_id": "copy", "other_inbox_id": "$plain_row"},
        {"turns_have_their_edge", "outcome_agrees_with_its_row"},
    ),
    Damage(
        "epoch_of_two_turns",
        ROW.format("turn_epoch = 3", "inbox_id = '$plain_row'") + OUTCOME.format("turn_epoch = 3"),
        {"agent_id": "alice", "agent_turn_id": "$plain", "other_agent_turn_id": "$running"},
        {"first_come_first_served", "pointers_name_the_last_box"},
    ),
    Damage(
        "epoch_of_another_era",
        "INSERT INTO state.ledger_era (era, epoch_floor, system_identifier, timeline_id, database_oid)"
        " SELECT 1, h.turn_epoch + 1, 1, 1, 1 FROM state.agent_state_head h WHERE h.agent_id = 'alice'"
        " ON CONFLICT (is_only) DO UPDATE SET era = 1, epoch_floor = EXCLUDED.epoch_floor",
        {"agent_id": "alice", "agent_turn_id": "$running"},
    ),
    Damage("epoch_beyond_its_head", head("carol", "turn_epoch = 0"), {"agent_id": "carol", "agent_turn_id": "$child"}),
    Damage(
        "first_come_first_served",
        "UPDATE state.agent_inbox SET created_at = created_at - interval '1 minute' WHERE inbox_id = '$called_row'",
        {"agent_id": "alice", "agent_turn_id": "$plain"},
    ),
    Damage(
        "no_idle_head_with_a_free_turn",
        "UPDATE state.agent_inbox SET agent_id = 'eve' WHERE agent_turn_id = '$queued';"
        "UPDATE state.execution_edges SET target_agent_id = 'eve' WHERE target_agent_turn_id = '$queued'",
        {"agent_id": "eve", "agent_turn_id": "$queued"},
    ),
    Damage(
        "paused_agents_take_no_lease",
        head("heidi", "paused_at_epoch = NULL"),
        {"agent_id": "heidi"},
        {"no_idle_head_with_a_free_turn"},
    ),
    Damage("paused_agents_take_no_lease", head("eve", "paused_at_epoch = 0"), {"agent_id": "eve"}),
    Damage(
        "paused_agents_take_no_lease",
        PAUSE.format("dave") + head("dave", "paused_at_epoch = turn_epoch - 1"),
        {"agent_id": "dave", "agent_turn_id": "$leased"},
    ),
    Damage(
        "statuses_have_their_edges",
        "DELETE FROM state.identity_edges WHERE action = 'pause'",
        {"agent_id": "heidi"},
    ),
    Damage(
        "statuses_have_their_edges",
        "UPDATE resource.project_agents SET status = 'retired' WHERE agent_id = 'eve'",
        {"agent_id": "eve"},
    ),
    Damage(
        "queued_turns_can_be_leased",
        "DELETE FROM resource.project_agents WHERE agent_id = 'alice'",
        {"agent_id": "alice", "agent_turn_id": "$queued"},
    ),
    Damage("outcome_without_a_turn", OUTCOME.format("inbox_id = 'x'"), {"agent_turn_id": "$plain", "inbox_id": "x"}),
    Damage("outcome_agrees_with_its_row", OUTCOME.format("channel_id = 'x'"), {"agent_turn_id": "$plain"}),
    Damage("outcome_agrees_with_its_row", OUTCOME.format("started_at = NULL"), {"agent_turn_id": "$plain"}),
    Damage(
        "receivers_go_with_their_turn",
        RECEIVER.format(f"status = 'active', next_at = {LATE}", "plain"),
        {"agent_turn_id": "$plain", "receiver_id": "one"},
    ),
    Damage(
        "receivers_go_with_their_turn",
        RECEIVER.format("told_state = 'failed'", "plain"),
        {"agent_turn_id": "$plain", "receiver_id": "one"},
    ),
    Damage(
        "receivers_go_with_their_turn",
        RECEIVER.format("agent_turn_id = 'nobody'", "running"),
        {"agent_turn_id": "nobody", "receiver_id": "one"},
    ),
    Damage(
        "firings_are_their_turns",
        FIRING.format("$plain"),
        {"schedule_id": "s", "agent_turn_id": "$plain"},
    ),
    Damage(
        "firings_are_their_turns",
        FIRING.format("zz-nobody"),
        {"schedule_id": "s", "agent_turn_id": "zz-nobody"},
    ),
    Damage(
        "scheduled_turns_are_fired",
        CORRELATED + SCHEDULE.format("NULL"),
        {"schedule_id": "s", "agent_turn_id": "$plain"},
    ),
    Damage("wakes_go_on_from_their_turn", WAKE.format("", "", "nobody"), {"agent_turn_id": "nobody"}),
    Damage("wakes_go_on_from_their_turn", WAKE.format("x", "", "$plain"), {"agent_turn_id": "$plain"}),
    Damage("wakes_go_on_from_their_turn", WAKE.format("", "x", "$plain"), {"agent_turn_id": "$plain"}),
    Damage(
        "wakes_go_on_from_their_turn",
        CORRELATED + WAKE.format("", "", "$plain") + WOKEN,
        {"agent_turn_id": "$plain"},
    ),
    Damage("schedules_fire_in_time", SCHEDULE.format(LATE), {"schedule_id": "s"}),
    Damage(
        "webhooks_get_each_end",
        "INSERT INTO state.webhooks (project_id, webhook_id, agent_turn_id, url, secret, events, created_by)"
        " SELECT project_id, agent_turn_id || '/x', agent_turn_id, 'u', 's', '{turn.ended}', 'ada'"
        " FROM state.turn_outcomes WHERE agent_turn_id = '$plain'",
        {"agent_turn_id": "$plain", "webhook_id": "$plain/x"},
    ),
    Damage(
        "webhooks_get_each_end",
        "WITH hook AS (INSERT INTO state.webhooks"
        " (project_id, webhook_id, agent_turn_id, url, secret, events, created_by)"
        " SELECT project_id, agent_turn_id || '/x', agent_turn_id, 'u', 's', '{turn.ended}', 'ada'"
        " FROM state.agent_inbox WHERE agent_turn_id = '$running' RETURNING *)"
        " INSERT INTO state.webhook_events (event_id, project_id, webhook_id, agent_turn_id, type, data, next_at)"
        " SELECT 'e', project_id, webhook_id, agent_turn_id, 'turn.ended', '{}', now() - interval '3 hours' FROM hook",
        {"agent_turn_id": "$running", "webhook_id": "$running/x"},
    ),
    Damage(
        "deletions_go_on",
        "INSERT INTO state.deletions (deletion_id, project_id, kind, end_user, requested_by, advanced_at)"
        " VALUES ('d1', 'p1', 'end_user', 'ada', 'root', now() - interval '2 hours')",
        {"deletion_id": "d1"},
    ),
    Damage(
        "deletions_go_on",
        "INSERT INTO state.deletions (deletion_id, project_id, kind, requested_by, status, ended_at)"
        " VALUES ('d1', 'p1', 'end_user', 'root', 'done', now());"
        " INSERT INTO state.deletion_items (deletion_id, project_id, kind, item_id) VALUES ('d1', 'p1', 'turn', 't')",
        {"deletion_id": "d1"},
    ),
    Damage(
        "files_are_whole_or_go",
        "INSERT INTO resource.artifacts (project_id, artifact_id, storage_uri, created_by)"
        " VALUES ('p1', 'file-x', 'file:///x', 'ada')",
        {"artifact_id": "file-x"},
    ),
    Damage(
        "files_are_whole_or_go",
        "INSERT INTO resource.artifacts (project_id, artifact_id, storage_uri, created_by, status, updated_at)"
        " VALUES ('p1', 'file-x', 'file:///x', 'ada', 'uploading', now() - interval '3 hours')",
        {"artifact_id": "file-x"},
    ),
    Damage(
        "files_of_cards_are_kept",
        "SET LOCAL session_replication_role = replica;"
        " INSERT INTO cards (card_id, tenant_id, content, metadata)"
        """ VALUES ('named', 'p1', '{}', '{"artifacts": ["file-x"]}')""",
        {"card_id": "named", "artifact_id": "file-x"},
    ),
    Damage(
        "files_of_cards_are_kept",
        "INSERT INTO state.artifact_refs (project_id, artifact_id, card_id, channel_id)"
        " VALUES ('p1', 'file-x', 'gone', 'public')",
        {"card_id": "gone", "artifact_id": "file-x"},
    ),
    Damage("unannounced", OUTCOME.format(f"announced_at = NULL, ended_at = {LATE}"), {"agent_turn_id": "$plain"}),
    Damage(
        "pointers_name_the_last_box",
        "UPDATE state.agent_state_pointers SET last_output_box_id = '$plain_box' WHERE agent_id = 'alice'",
        {"agent_id": "alice", "agent_turn_id": "$called", "box_id": "$plain_box"},
    ),
    Damage(
        "named_boxes_exist",
        "UPDATE state.agent_state_pointers SET memory_context_box_id = '$plain' WHERE agent_id = 'alice'",
        {"agent_id": "alice", "box_id": "$plain"},
    ),
    Damage(
        "boxes_are_of_one_channel",
        "UPDATE state.channel_pointers SET channel_id = 'x' WHERE agent_id = 'alice'",
        {"agent_id": "alice"},
    ),
    Damage(
        "final_rows_are_archived",
        "ALTER TABLE state.agent_inbox DROP CONSTRAINT final_is_archived;"
        "UPDATE state.agent_inbox SET archived_at = NULL WHERE inbox_id = '$plain_row'",
        {"inbox_id": "$plain_row"},
        {"outcome_agrees_with_its_row"},
    ),
    Damage(
        "final_rows_are_archived",
        "UPDATE state.agent_inbox SET next_retry_at = 'infinity' WHERE inbox_id = '$leased_row'",
        {"inbox_id": "$leased_row"},
    ),
    *(
        Damage(
            "settings_without_text",
            ROW.format(
                f"payload = jsonb_set(payload, '{{runtime_config,{name}}}', '{text}')", "inbox_id = '$plain_row'"
            ),
            {"inbox_id": "$plain_row"},
        )
        for name, text in (("instructions", '"be brief"'), ("choices", "[]"), ("card_id", '"$plain-instruction"'))
    ),
    Damage(
        "retries_are_bounded",
        "UPDATE state.agent_inbox SET retry_count = 4, defer_reason = 'card_not_visible' WHERE correlation_id = 'told'",
        {"agent_id": "bob", "tool_call_id": "told"},
    ),
    Damage(
        "retries_are_bounded",
        "UPDATE state.agent_inbox SET status = 'deferred', defer_reason = 'x', next_retry_at = now() + interval '1 day'"
        " WHERE correlation_id = 'told'",
        {"agent_id": "bob", "tool_call_id": "told"},
    ),
    Damage(
        "retries_are_bounded",
        "UPDATE state.agent_inbox SET retry_count = 1 WHERE inbox_id = '$leased_row'",
        {"inbox_id": "$leased_row"},
    ),
    Damage(
        "retries_are_bounded",
        ROW.format("defer_reason = 'card_not_visible', status = 'deferred'", "inbox_id = '$leased_row'"),
        {"inbox_id": "$leased_row"},
    ),
    Damage(
        "rows_are_of_somebody",
        COPY.format(
            "'copy-of', project_id, 'nobody', 'tool_result', agent_turn_id, turn_epoch, context_headers, payload,"
            f" 'pending', now(), NULL, NULL, {LATE}, NULL, 'report'"
        ),
        {"agent_id": "nobody", "inbox_id": "copy"},
    ),
    Damage(
        "rows_are_of_somebody",
        COPY.format(
            "'copy-of', project_id, agent_id, 'turn', 'made-up', turn_epoch, context_headers, payload,"
            f" 'processing', now(), now(), NULL, {LATE}, NULL, 'call'"
        ),
        {"agent_turn_id": "made-up", "inbox_id": "copy"},
    ),
    Damage(
        "stops_came_true",
        "UPDATE state.turn_outcomes SET error_code = 'x' WHERE agent_turn_id = '$stopped'",
        {"agent_turn_id": "$stopped"},
    ),
    Damage(
        "claims_are_short",
        f"UPDATE state.agent_inbox SET processed_at = {LATE} WHERE inbox_id = '$leased_row'",  # noqa: S608
        {"inbox_id": "$leased_row", "agent_turn_id": "$leased"},
    ),
    Damage(
        "due_rows_are_taken",
        f"UPDATE state.agent_inbox SET next_retry_at = {LATE} WHERE correlation_id = 'told'",  # noqa: S608
        {"agent_id": "bob", "agent_turn_id": "$asleep"},
    ),
    Damage("deadlines_are_kept", head("bob", f"resume_deadline = {LATE}"), {"agent_turn_id": "$asleep"}),
    Damage(  # with a report that is there
        "deadlines_are_kept",
        ";".join([NO_DEADLINE, head("bob", f"resume_deadline = NULL, updated_at = {LATE}"), TOLD_LATE]),
        {"agent_turn_id": "$asleep"},
    ),
    Damage(
        "stops_are_obeyed",
        COPY.format(
            "'$running', project_id, agent_id, 'stop', '$running', 1, context_headers, payload, 'processing', now(),"
            f" now(), NULL, {LATE}, NULL, 'report'"
        ),
        {"agent_id": "alice", "agent_turn_id": "$running"},
    ),
    Damage(
        "steps_in_order",
        "UPDATE state.agent_steps SET step_id = '$plain-s2' WHERE step_id = '$plain-s1'",
        {"agent_turn_id": "$plain"},
    ),
    Damage("heads_count_their_steps", head("alice", "step_count = 5"), {"agent_turn_id": "$running"}),
    Damage(
        "step_agrees_with_its_turn",
        "UPDATE state.agent_steps SET channel_id = 'x' WHERE step_id = '$plain-s1'",
        {"agent_turn_id": "$plain", "step_id": "$plain-s1"},
    ),
    Damage(
        "step_agrees_with_its_turn",
        "UPDATE state.agent_steps SET status = 'running' WHERE step_id = '$plain-s1'",
        {"agent_turn_id": "$plain", "step_id": "$plain-s1"},
    ),
    Damage(
        "step_agrees_with_its_turn",
        "UPDATE state.agent_steps SET agent_id = 'bob' WHERE step_id = '$plain-s1'",
        {"agent_turn_id": "$plain", "step_id": "$plain-s1"},
    ),
    Damage(
        "an_ending_step_is_the_last",
        "UPDATE state.agent_steps SET status = 'failed' WHERE step_id = '$plain-s1'",
        {"agent_turn_id": "$plain", "step_id": "$plain-s1"},
    ),
    Damage(
        "an_ending_step_is_the_last",
        "UPDATE state.agent_steps SET metadata = '{\"next\": \"end\"}' WHERE step_id = '$called-s1'",
        {"agent_turn_id": "$called", "step_id": "$called-s1"},
    ),
    Damage(
        "calls_of_a_step",
        "UPDATE state.agent_steps SET tool_call_ids = '[\"ghost\"]' WHERE step_id = '$plain-s1'",
        {"step_id": "$plain-s1", "tool_call_id": "ghost"},
    ),
    Damage(
        "an_action_is_one_call",
        "UPDATE state.agent_steps SET metadata = metadata || '{\"attempts\": [{}]}' WHERE step_id = '$acted-s1'",
        {"agent_id": "frank", "agent_turn_id": "$acted"},
    ),
    Damage(
        "an_action_is_one_call",
        "UPDATE state.agent_inbox SET payload = jsonb_set(payload, '{ui_action,tool_name}', '\"other\"')"
        " WHERE inbox_id = '$acted_row'",
        {"agent_id": "frank", "agent_turn_id": "$acted"},
    ),
    Damage(
        "an_action_is_one_call",
        "UPDATE state.turn_outcomes SET tool_result_card_id = NULL WHERE agent_turn_id = '$acted'",
        {"agent_id": "frank", "agent_turn_id": "$acted"},
    ),
    Damage(
        "call_agrees_with_its_step",
        "UPDATE state.turn_waiting_tools SET turn_epoch = 9 WHERE tool_call_id = 'answered'",
        {"agent_turn_id": "$called", "tool_call_id": "answered"},
    ),
    Damage(
        "waiting_counts_agree", head("bob", "waiting_tool_count = 5"), {"agent_id": "bob", "agent_turn_id": "$asleep"}
    ),
    Damage("waiting_counts_agree", head("alice", "resume_deadline = now()"), {"agent_turn_id": "$running"}),
    Damage(
        "heads_have_the_earliest_deadline",
        head("bob", "resume_deadline = resume_deadline + interval '1 s'"),
        {"agent_turn_id": "$asleep", "tool_call_id": "waits"},
    ),
    Damage(
        "heads_have_the_earliest_deadline",
        head("bob", "resume_deadline = NULL"),
        {"agent_turn_id": "$asleep", "tool_call_id": "waits"},
    ),
    Damage(
        "nobody_waits_for_an_ended_turn",
        "UPDATE state.turn_waiting_tools SET wait_status = 'waiting' WHERE tool_call_id = 'dropped'",
        {"agent_turn_id": "$stopped", "tool_call_id": "dropped"},
        {"one_result_a_call"},
    ),
    Damage(
        "a_received_call_has_a_live_report",
        "DELETE FROM state.agent_inbox WHERE correlation_id = 'told'",
        {"agent_turn_id": "$asleep", "tool_call_id": "told"},
    ),
    Damage(
        "a_consumed_report_has_a_settled_call",
        "UPDATE state.agent_inbox SET status = 'consumed', archived_at = now() WHERE correlation_id = 'told'",
        {"agent_turn_id": "$asleep", "tool_call_id": "told"},
        {"a_received_call_has_a_live_report"},
    ),
    Damage(
        "one_winner_a_call",
        "UPDATE state.agent_inbox SET last_error = 'x' WHERE correlation_id = 'answered'",
        {"agent_turn_id": "$called", "tool_call_id": "answered"},
    ),
    Damage(
        "a_losing_report_changed_nothing",
        COPY.format(
            "'dropped', project_id, agent_id, 'tool_result', '$stopped', 1, context_headers, '{}', 'consumed', now(),"
            " now(), now(), now(), NULL, 'report'"
        ),
        {"tool_call_id": "dropped", "inbox_id": "copy"},
    ),
    Damage(
        "one_result_a_call",
        CARD.format("'answered'", '{"type": "tool.result"}') + place("$called_box", "$plain-x"),
        {"agent_turn_id": "$called", "tool_call_id": "answered", "box_id": "$called_box"},
    ),
    Damage(
        "one_result_a_call",
        "UPDATE cards SET tool_call_id = 'x' WHERE card_id = 'late-timeout'",
        {"agent_turn_id": "$called", "tool_call_id": "late"},
        {"results_are_their_calls"},
    ),
    Damage(
        "results_are_their_calls",
        "UPDATE cards SET metadata = metadata || '{\"author_id\": \"alice\"}' WHERE card_id = 'answered-result'",
        {"tool_call_id": "answered", "card_id": "answered-result"},
    ),
    Damage(
        "results_are_their_calls",
        "UPDATE state.turn_waiting_tools SET applied_at = NULL WHERE tool_call_id = 'answered'",
        {"tool_call_id": "answered", "card_id": "answered-result"},
    ),
    Damage(
        "turns_have_their_edge",
        "UPDATE state.execution_edges SET recursion_depth = 7 WHERE edge_id = 'enqueue-$plain'",
        {"agent_turn_id": "$plain"},
    ),
    Damage(
        "edges_have_their_turn",
        "INSERT INTO state.execution_edges (edge_id, project_id, primitive, edge_phase, target_agent_id,"
        " target_agent_turn_id) VALUES ('enqueue-$plain-x', 'p1', 'enqueue', 'request', 'alice', '$plain-x')",
        {"agent_turn_id": "$plain-x", "edge_id": "enqueue-$plain-x"},
    ),
    Damage(
        "calls_have_their_edges",
        "DELETE FROM state.execution_edges WHERE edge_id = 'report-answered'",
        {"agent_turn_id": "$called", "tool_call_id": "answered"},
    ),
    Damage(
        "calls_have_their_edges",
        "UPDATE state.execution_edges SET source_step_id = 'x' WHERE edge_id = 'tool-call-answered'",
        {"agent_turn_id": "$called", "tool_call_id": "answered"},
    ),
    Damage(
        "edges_have_their_call",
        "INSERT INTO state.execution_edges (edge_id, project_id, primitive, edge_phase, correlation_id, trace_id)"
        " SELECT 'x', 'p1', 'tool_call', 'request', 'ghost', trace_id FROM state.turn_outcomes"
        " WHERE agent_turn_id = '$plain'",
        {"edge_id": "x", "tool_call_id": "ghost"},
    ),
    Damage(
        "one_depth_a_call",
        "UPDATE state.execution_edges SET recursion_depth = 7 WHERE edge_id = 'report-answered'",
        {"tool_call_id": "answered"},
    ),
    Damage(
        "one_depth_a_call",
        'UPDATE state.agent_inbox SET context_headers = context_headers || \'{"CG-Recursion-Depth": "7"}\''
        " WHERE correlation_id = 'late'",
        {"tool_call_id": "late"},
    ),
    Damage(
        "children_are_deeper",
        'UPDATE state.agent_inbox SET context_headers = context_headers || \'{"CG-Recursion-Depth": "0"}\''
        " WHERE agent_turn_id = '$child' OR correlation_id = 'ends';"
        "UPDATE state.execution_edges SET recursion_depth = 0 WHERE target_agent_turn_id = '$child'",
        {"agent_turn_id": "$child", "parent_turn_id": "$called"},
    ),
    Damage(
        "children_are_deeper",
        'UPDATE state.agent_inbox SET context_headers = context_headers || \'{"CG-Recursion-Depth": "20"}\''
        " WHERE agent_turn_id = '$plain';"
        "UPDATE state.execution_edges SET recursion_depth = 20 WHERE target_agent_turn_id = '$plain'",
        {"agent_turn_id": "$plain"},
    ),
    Damage(
        "deliverable_in_its_box",
        OUTCOME.format("deliverable_card_id = '$plain-s1-thought'"),
        {"agent_turn_id": "$plain", "box_id": "$plain_box", "card_id": "$plain-s1-thought"},
    ),
    Damage(
        "deliverable_in_its_box",
        CARD.format("NULL", '{"type": "task.deliverable", "agent_turn_id": "$plain"}')
        + ";"
        + place("$plain_box", "$plain-x"),
        {"agent_turn_id": "$plain", "box_id": "$plain_box"},
    ),
    Damage(
        "deliverable_in_its_box",
        CARD.format("NULL", '{"type": "agent.thought", "agent_turn_id": "$plain"}')
        + ";"
        + place("$plain_box", "$plain-x"),
        {"agent_turn_id": "$plain", "box_id": "$plain_box"},
    ),
    Damage(
        "deliverable_in_its_box",
        "DELETE FROM box_cards WHERE card_id = '$plain-s1-deliverable'",
        {"agent_turn_id": "$plain", "card_id": "$plain-s1-deliverable"},
        {"cards_are_in_their_boxes"},
    ),
    Damage(
        "named_result_in_its_box",
        "UPDATE state.turn_outcomes SET tool_result_card_id = 'answered-result' WHERE agent_turn_id = '$child'",
        {"agent_turn_id": "$child", "card_id": "answered-result"},
    ),
    Damage(
        "box_without_a_row",
        ROW.format('payload = payload || \'{"context_box_id": "$plain"}\'', "agent_turn_id = '$queued'"),
        {"agent_turn_id": "$queued", "box_id": "$plain"},
    ),
    Damage(
        "positions_without_gaps",
        "UPDATE box_cards SET position = 9 WHERE card_id = '$plain-s1-deliverable'",
        {"box_id": "$plain_box"},
    ),
    Damage(
        "no_card_twice_in_a_box",
        place("$running_box", "$running-s1-thought"),
        {"agent_turn_id": "$running", "box_id": "$running_box", "card_id": "$running-s1-thought"},
    ),
    Damage(
        "made_boxes_hold_each_card_once",
        "INSERT INTO boxes (box_id, tenant_id, request_digest) VALUES ('$made', 'p1', 'x');"
        "INSERT INTO box_cards SELECT '$made', n, '$plain-instruction' FROM generate_series(1, 2) n",
        {"box_id": "$made"},
        {"no_card_twice_in_a_box"},
    ),
    Damage(
        "places_are_whole",
        "UPDATE cards SET tenant_id = 'p2' WHERE card_id = '$plain-s1-thought'",
        {"box_id": "$plain_box", "card_id": "$plain-s1-thought"},
    ),
    Damage(
        "places_are_whole",
        "DELETE FROM cards WHERE card_id = '$plain-s1-thought'",
        {"box_id": "$plain_box", "card_id": "$plain-s1-thought"},
    ),
    Damage(
        "places_are_whole",
        "DELETE FROM boxes WHERE box_id = '$plain_box'",
        {"box_id": "$plain_box", "card_id": "$plain-s1-thought"},
        {"box_without_a_row"},
    ),
    Damage(
        "cards_are_in_their_boxes",
        "DELETE FROM box_cards WHERE card_id = '$running-s1-thought'",
        {"agent_turn_id": "$running", "card_id": "$running-s1-thought"},
    ),
    Damage(
        "cards_are_in_their_boxes",
        place("$running_context", "$running-s1-thought"),
        {"agent_turn_id": "$running", "card_id": "$running-s1-thought", "box_id": "$running_context"},
        {"context_boxes_never_change"},
    ),
    Damage(
        "cards_are_in_their_boxes",
        "UPDATE boxes SET created_at = created_at - interval '3 hours' WHERE box_id = '$child_box';"  # noqa: S608 -- constants
        + place("$child_box", "$running-s1-thought"),
        {"agent_turn_id": "$running", "card_id": "$running-s1-thought", "box_id": "$child_box"},
    ),
    Damage(
        "conversation_keeps_its_box",
        "UPDATE state.conversations SET channel_id = 'x'",
        {"agent_id": "grace", "agent_turn_id": "$talked", "box_id": "$talked_box"},
    ),
    Damage(
        "conversation_keeps_its_box",
        "UPDATE state.conversations SET output_box_id = '$plain_box' WHERE conversation_id = 'c1'",
        {"agent_turn_id": "$talked"},
    ),
    Damage(
        "conversation_keeps_its_box",
        ROW.format("payload = payload #- '{runtime_config,remember}'", "inbox_id = '$talked_row'"),
        {"agent_turn_id": "$talked"},
    ),
    Damage(
        "conversation_without_a_box",
        "DELETE FROM boxes WHERE box_id = '$talked_box'",
        {"agent_id": "grace", "box_id": "$talked_box"},
        {"box_without_a_row", "named_boxes_exist", "places_are_whole"},
    ),
    Damage(
        "conversation_keeps_its_box",
        ROW.format("payload = payload || '{\"output_box_id\": null}'", "inbox_id = '$talked_row'"),
        {"agent_turn_id": "$talked"},
        {"outcome_agrees_with_its_row", "step_agrees_with_its_turn"},
    ),
    Damage(
        "compactions_make_boxes",
        CUT.format("'{data,first_card_id}', '\"$plain-s1-thought\"'", "$cut"),
        {"box_id": "$cut_again_box", "step_id": "$cut-s1"},
    ),
    Damage(
        "compactions_make_boxes",
        CUT.format("'{data,first_card_id}', '\"$dropped_later-s1-deliverable\"'", "$cut"),
        {"box_id": "$cut_again_box", "step_id": "$cut-s1"},
    ),
    Damage(
        "compactions_make_boxes",
        "UPDATE boxes SET parent_ids = '{}' WHERE box_id = '$cut_again_box'",
        {"box_id": "$cut_again_box", "step_id": "$cut-s1"},
        {"conversation_keeps_its_box"},
    ),
    Damage(
        "compactions_make_boxes",
        "UPDATE box_cards SET position = position + 100 WHERE box_id = '$cut_again_box' AND position IN (2, 3);"
        "UPDATE box_cards SET position = 105 - position WHERE box_id = '$cut_again_box' AND position > 100",
        {"box_id": "$cut_again_box", "step_id": "$cut-s1"},
    ),
    Damage(
        "compactions_make_boxes",
        "UPDATE state.conversations SET output_box_id = '$cut_again_box' WHERE conversation_id = 'c2'",
        {"agent_turn_id": "$cut_again", "step_id": "$cut_again-s1"},
    ),
    Damage(
        "cuts_are_between_turns",
        "DELETE FROM box_cards WHERE box_id = '$cut_again_box' AND card_id = '$dropped_later-s1-thought'",
        {"box_id": "$cut_again_box", "agent_turn_id": "$dropped_later"},
        {"positions_without_gaps", "compactions_make_boxes"},
    ),
    Damage(
        "cuts_are_between_turns",
        "UPDATE cards SET tool_calls = '[{\"tool_call_id\": \"c\"}]' WHERE card_id = '$gone-s1-thought';"
        "UPDATE cards SET tool_call_id = 'c', metadata = jsonb_set(metadata, '{type}', '\"tool.result\"')"
        " WHERE card_id = '$dropped_later-s1-thought'",
        {"box_id": "$cut_again_box", "agent_turn_id": "$dropped_later", "card_id": "$dropped_later-s1-thought"},
    ),
    Damage(
        "what_made_way_is_asked_to_stop",
        "DELETE FROM state.agent_inbox WHERE message_type = 'stop' AND agent_turn_id = '$displaced'",
        {"agent_id": "mallory", "agent_turn_id": "$displaced"},
    ),
    Damage(
        "what_made_way_is_recorded",
        ROW.format("payload = payload - 'multitask'", "inbox_id = '$displaced_row'"),
        {"agent_turn_id": "$rolled_back", "other_agent_turn_id": "$displaced"},
    ),
    Damage(
        "what_was_rolled_back_is_forgotten",
        "UPDATE state.turn_outcomes SET stats = stats - 'rolled_back_by' WHERE agent_turn_id = '$rolled_back'",
        {"agent_id": "mallory", "agent_turn_id": "$rolled_back"},
    ),
    Damage(
        "what_was_rolled_back_is_forgotten",
        "UPDATE state.conversations SET output_box_id = '$rolled_back_box' WHERE conversation_id = 'c3'",
        {"box_id": "$rolled_back_box", "agent_turn_id": "$rolled_back"},
        {"conversation_keeps_its_box"},
    ),
    Damage(
        "what_was_rolled_back_is_forgotten",
        "INSERT INTO box_cards VALUES ('$displaced_box', 1, '$rolled_back-deliverable')",
        {"box_id": "$displaced_box", "agent_turn_id": "$rolled_back"},
    ),
    Damage(
        "what_was_rolled_back_is_forgotten",
        CARD.format("NULL", "{}") + place("$rolled_back_box", "$plain-x") + AGED,
        {"box_id": "$displaced_box", "agent_turn_id": "$rolled_back"},
    ),
    Damage(
        "what_made_way_is_recorded",
        ROW.format("payload = payload - 'rolled_back_by'", "inbox_id = '$rolled_back_row'"),
        {"agent_turn_id": "$rolled_back", "other_agent_turn_id": "$displaced"},
    ),
    Damage(
        "sleeping_instances_have_no_turns",
        "UPDATE resource.project_agents SET status = 'dormant' WHERE agent_id IN ('alice', 'grace')",
        {"agent_id": "alice", "agent_turn_id": "$running"},
    ),
    Damage(
        "context_boxes_never_change",
        CARD.format("NULL", "{}") + place("$plain_context", "$plain-x"),
        {"box_id": "$plain_context", "card_id": "$plain-x"},
    ),
    Damage(
        "batches_count_their_tasks",
        BATCH.format("success_count = success_count + 1", "forked"),
        {"batch_id": "batch-forked", "agent_turn_id": "$forking", "tool_call_id": "forked"},
    ),
    Damage(
        "decided_batches_have_answered",
        BATCH.format("status = 'failed'", "decided"),
        {"batch_id": "batch-decided", "tool_call_id": "decided"},
    ),
    Damage(
        "decided_batches_have_answered",
        BATCH.format("decided_at = NULL", "decided"),
        {"batch_id": "batch-decided"},
    ),
    Damage(
        "decided_batches_have_answered",
        BATCH.format("status = 'success', decided_at = now()", "forked"),
        {"batch_id": "batch-forked"},
    ),
    Damage(
        "running_batches_hold_their_call",
        "UPDATE state.turn_waiting_tools SET held_by = NULL WHERE tool_call_id = 'forked'",
        {"batch_id": "batch-forked", "agent_turn_id": "$forking"},
        {"heads_have_the_earliest_deadline"},
    ),
    *(
        Damage("own_batches_keep_their_answer", BATCH.format(change, "asking"), {"batch_id": "batch-asking/1"})
        for change in ("result = NULL", "status = 'withdrawn'", "decided_at = NULL")
    ),
    Damage(
        "own_batches_keep_their_answer",
        "UPDATE state.turn_waiting_tools SET held_by = 'batch-asking/1' WHERE tool_call_id = 'asking'",
        {"batch_id": "batch-asking/1", "agent_turn_id": "$asker", "tool_call_id": "asking"},
    ),
    Damage(
        "batches_count_their_tasks",
        BATCH.format("success_count = success_count + 1", "asking"),
        {"batch_id": "batch-asking/1"},
    ),
    Damage(
        "tasks_are_their_turns",
        TASK.format("status = 'partial'", "$awaited") + BATCH.format("open_count = 0", "forked"),
        {"batch_id": "batch-forked", "agent_turn_id": "$awaited", "parent_turn_id": "$forking"},
    ),
    Damage(
        "tasks_are_their_turns",
        TASK.format("error_code = 'x'", "$settled"),
        {"batch_id": "batch-forked", "agent_turn_id": "$settled"},
    ),
    Damage(
        "tasks_are_their_turns",
        TASK.format("current_agent_turn_id = NULL", "$awaited"),
        {"batch_id": "batch-forked", "parent_turn_id": "$forking"},
    ),
    Damage("tasks_are_their_turns", NODE.format("waited = false", "$settled"), {"agent_turn_id": "$settled"}),
    Damage("nodes_end_with_their_turns", NODE.format("ended = true", "$awaited"), {"agent_turn_id": "$awaited"}),
    Damage("nodes_end_with_their_turns", NODE.format("ended = false", "$settled"), {"agent_turn_id": "$settled"}),
    Damage(
        "marks_reach_the_children",
        NODE.format("stopping_at = now()", "$forking"),
        {"agent_turn_id": "$awaited", "parent_turn_id": "$forking"},
    ),
    Damage(
        "held_calls_are_asked_about",
        ASKED.format("status = 'expired', decided_at = now()", "held"),
        {"agent_turn_id": "$asking", "tool_call_id": "held", "interrupt_id": "int-held-1"},
        {"decisions_have_their_effect"},
    ),
    Damage(
        "held_calls_are_asked_about",
        "DELETE FROM state.interrupts WHERE tool_call_id = 'held'",
        {"agent_turn_id": "$asking", "tool_call_id": "held"},
    ),
    Damage(
        "open_interrupts_hold_their_call",
        "UPDATE state.turn_waiting_tools SET held_by = NULL WHERE tool_call_id = 'held'",
        {"agent_turn_id": "$asking", "tool_call_id": "held", "interrupt_id": "int-held-1"},
    ),
    Damage(
        "open_interrupts_hold_their_call",
        "UPDATE state.turn_waiting_tools SET deadline = now() WHERE tool_call_id = 'held'",
        {"agent_turn_id": "$asking", "tool_call_id": "held", "interrupt_id": "int-held-1"},
    ),
    Damage(
        "decisions_have_their_effect",
        ASKED.format("decision = 'respond'", "approved"),
        {"agent_turn_id": "$asking", "tool_call_id": "approved", "interrupt_id": "int-approved-1"},
    ),
    Damage(
        "decisions_have_their_effect",
        ASKED.format("decision = 'approve'", "rejected"),
        {"agent_turn_id": "$asking", "tool_call_id": "rejected", "interrupt_id": "int-rejected-1"},
    ),
    Damage(
        "deciders_have_no_words",
        'UPDATE state.agent_inbox SET context_headers = context_headers || \'{"CG-Sender": "root"}\''
        " WHERE agent_turn_id = '$asking' AND message_type = 'turn';"
        "UPDATE state.interrupts SET decided_by = 'root', requester_may_decide = false"
        " WHERE interrupt_id = 'int-approved-1'",
        {"agent_turn_id": "$asking", "tool_call_id": "approved", "interrupt_id": "int-approved-1"},
        {"clients_answer_their_own_calls"},
    ),
    *(
        Damage(
            "clients_answer_their_own_calls",
            ASKED.format(change, "clients"),
            {"agent_turn_id": "$asking", "tool_call_id": "clients", "interrupt_id": "int-clients-1"},
        )
        for change in (
            "decided_by = 'dora'",
            "requester = 'dora', decided_by = 'dora'",
            "only_requester = false",
            "reason = 'input_required'",
            "allowed_decisions = ARRAY['edit', 'respond']",
        )
    ),
    Damage(
        "edits_count",
        "UPDATE state.turn_waiting_tools SET call_card_id = 'edited-call' WHERE tool_call_id = 'edited'",
        {"agent_turn_id": "$asking", "tool_call_id": "edited", "interrupt_id": "int-edited-1"},
    ),
    Damage(
        "withdrawn_interrupts_are_over",
        ASKED.format("status = 'withdrawn', decision = NULL", "approved"),
        {"agent_turn_id": "$asking", "tool_call_id": "approved", "interrupt_id": "int-approved-1"},
        {"decisions_have_their_row"},
    ),
    Damage(
        "interrupts_agree_with_their_call",
        ASKED.format("channel_id = 'x'", "approved"),
        {"agent_turn_id": "$asking", "tool_call_id": "approved", "interrupt_id": "int-approved-1"},
    ),
    Damage(
        "decisions_have_their_effect",
        ROW.format("inbox_id = 'decide-int-curious~answered'", "inbox_id = 'decide-int-rejected-1'"),
        {"agent_turn_id": "$asking", "tool_call_id": "curious", "interrupt_id": "int-curious~answered"},
    ),
    Damage(
        "withdrawn_interrupts_are_over",
        "UPDATE state.interrupts SET status = 'withdrawn', decision = NULL, response = NULL"
        " WHERE interrupt_id = 'int-curious~answered'",
        {"agent_turn_id": "$asking", "tool_call_id": "curious", "interrupt_id": "int-curious~answered"},
        {"decisions_have_their_row"},
    ),
    *(
        Damage(
            "tool_questions_put_off_their_call",
            f"UPDATE state.turn_waiting_tools SET {change} WHERE tool_call_id = 'curious'",  # noqa: S608 -- of this test
            {"agent_turn_id": "$asking", "tool_call_id": "curious", "interrupt_id": "int-curious~open"},
        )
        for change in ("left_seconds = NULL", "deadline = now() + interval '1 hour'", "held_by = 'batch-other'")
    ),
    Damage(
        "tool_questions_put_off_their_call",
        "UPDATE state.interrupts SET status = 'expired', decided_at = now() WHERE interrupt_id = 'int-curious~open'",
        {"agent_turn_id": "$asking", "tool_call_id": "curious"},
    ),
    *(
        Damage(
            "tool_questions_keep_their_answer",
            f"UPDATE state.interrupts SET {change} WHERE interrupt_id = 'int-{which}'",  # noqa: S608 -- as above
            {"agent_turn_id": "$asking", "interrupt_id": f"int-{which}"},
        )
        for which, change in (("curious~answered", "response = NULL"), ("approved-1", "response = '1'"))
    ),
    *(
        Damage(
            "begun_calls_wait_for_their_run",
            f"UPDATE state.turn_waiting_tools SET begun_by = 'run'{more} WHERE tool_call_id = 'unknown'",  # noqa: S608
            {"agent_turn_id": "$doubtful", "tool_call_id": "unknown"},
            others,
        )
        for more, others in (("", set[str]()), (", begun_at = NULL", {"confirmations_are_of_begun_calls"}))
    ),
    Damage(
        "confirmations_are_of_begun_calls",
        "UPDATE state.turn_waiting_tools SET begun_at = NULL WHERE tool_call_id = 'unknown'",
        {"agent_turn_id": "$doubtful", "tool_call_id": "unknown", "interrupt_id": "int-unknown-1"},
    ),
    Damage(
        "confirmations_are_of_begun_calls",
        ASKED.format("allowed_decisions = '{edit}'", "unknown"),
        {"agent_turn_id": "$doubtful", "interrupt_id": "int-unknown-1"},
    ),
    Damage(
        "expired_interrupts_are_closed",
        ASKED.format(f"expires_at = {LATE}", "held"),
        {"agent_turn_id": "$asking", "interrupt_id": "int-held-1"},
    ),
    Damage(
        "steers_go_with_their_turn",
        STEER.format("status = 'waiting', settled_at = NULL", "skipped"),
        {"agent_turn_id": "$heard", "steer_id": "$skipped"},
        {"steers_have_their_row"},
    ),
    Damage(
        "steers_have_their_row",
        "DELETE FROM state.agent_inbox WHERE inbox_id = '$waiting'",
        {"agent_turn_id": "$steered", "steer_id": "$waiting"},
    ),
    Damage(
        "steers_have_their_row",
        ROW.format("status = 'consumed', archived_at = now()", "inbox_id = '$taken'"),
        {"agent_turn_id": "$steered", "steer_id": "$taken"},
    ),
    Damage(
        "steers_have_their_row",
        "DELETE FROM state.execution_edges WHERE correlation_id = '$first'",
        {"agent_turn_id": "$heard", "steer_id": "$first"},
    ),
    Damage(
        "final_rows_are_archived",
        ROW.format("next_retry_at = now()", "inbox_id = '$waiting'"),
        {"inbox_id": "$waiting"},
    ),
    Damage(
        "decisions_have_their_row",
        "DELETE FROM state.agent_inbox WHERE correlation_id = 'int-approved-1'",
        {"interrupt_id": "int-approved-1"},
    ),
    Damage(
        "decisions_have_their_row",
        ROW.format("status = 'skipped'", "correlation_id = 'int-approved-1' AND message_type = 'decision'"),
        {"interrupt_id": "int-approved-1"},
    ),
    Damage(
        "steers_go_with_their_turn",
        STEER.format("step_id = '$steered-s7'", "taken"),
        {"agent_turn_id": "$steered", "steer_id": "$taken"},
    ),
    Damage(
        "steers_are_asked_with_once",
        place("$heard_box", "$skipped"),
        {"agent_turn_id": "$heard", "steer_id": "$skipped"},
        {"deliverable_in_its_box"},
    ),
    Damage(
        "steers_are_asked_with_once",
        place("$heard_box", "$first"),
        {"agent_turn_id": "$heard", "steer_id": "$first"},
        {"deliverable_in_its_box", "no_card_twice_in_a_box"},
    ),
    Damage(
        "steers_are_asked_with_once",
        STEER.format("step_id = '$heard-s2'", "second"),
        {"agent_turn_id": "$heard", "steer_id": "$second"},
    ),
    Damage(
        "steers_are_in_order",
        "ALTER TABLE state.steers ALTER COLUMN seq DROP IDENTITY;" + STEER.format("seq = 0", "second"),
        {"agent_turn_id": "$heard", "steer_id": "$second", "other_steer_id": "$first"},
    ),
    *(
        Damage(
            "reruns_name_a_turn_that_was_over",
            ROW.format(f"payload = jsonb_set(payload, '{{rerun,{field}}}', '{value}')", "inbox_id = '$again_row'"),
            {"agent_turn_id": "$again", "other_agent_turn_id": other},
            others,
        )
        for field, value, other, others in (
            ("of", '"$running"', "$running", {"reruns_have_copies"}),
            ("of", '"$plain"', "$plain", {"reruns_have_copies"}),
            ("from_step", "4", "$once", set[str]()),
        )
    ),
    Damage(
        "reruns_name_a_turn_that_was_over",
        ROW.format("created_at = created_at - interval '1 minute'", "inbox_id = '$again_row'"),
        {"agent_turn_id": "$again", "other_agent_turn_id": "$once"},
        {"first_come_first_served"},
    ),
    Damage(
        "reruns_have_copies",
        ROW.format("payload = jsonb_set(payload, '{rerun,from_step}', '1')", "inbox_id = '$again_row'"),
        {"agent_turn_id": "$again", "box_id": "$again_box", "card_id": "$once-s1-thought"},
    ),
    Damage(
        "reruns_have_copies",
        "UPDATE box_cards SET card_id = '$plain-s1-thought' WHERE box_id = '$once_context'",
        {"agent_turn_id": "$again", "box_id": "$again_context"},
        {"context_boxes_never_change"},
    ),
    *(
        Damage("call_steps_are_whole", damage, {"agent_turn_id": "$holder", "tool_call_id": "shared"})
        for damage in (
            "DELETE FROM state.call_steps WHERE key = 'plan'",
            "UPDATE state.call_steps SET tokens = tokens + 1 WHERE key = 'write'",
            _MANY_STEPS,
        )
    ),
    *(
        Damage("budgets_count_what_is_spent", BUDGET.format(change, name), {"budget_id": f"${name}"})
        for change, name in (
            ("spent_tokens = spent_tokens + 1", "holder"),
            ("past_cost = past_cost + 1", "holder"),
            ("unsettled_tokens = 1", "spent"),
            ("beyond_tokens = beyond_tokens + 1", "spent"),
        )
    ),
    Damage(
        "budgets_count_what_is_spent",
        BUDGET.format("spent_turns = 0", "day"),
        {"budget_id": "$day"},
        {"turns_are_charged_somewhere"},
    ),
    *(
        Damage(
            "budgets_reserve_what_is_open", BUDGET.format(f"{what} = {what} + 1", "holder"), {"budget_id": "$holder"}
        )
        for what in ("reserved_tokens", "reserved_cost", "reserved_turns")
    ),
    *(
        Damage("budgets_are_not_exceeded", BUDGET.format(f"{what} = 1", "day"), {"budget_id": "$day"})
        for what in ("max_tokens", "max_turns")
    ),
    *(
        Damage("grants_are_what_was_given", damage, {"budget_id": "$holder"})
        for damage in (
            BUDGET.format("max_cost = max_cost + 1", "holder"),
            "DELETE FROM state.budget_raises WHERE budget_id = '$holder'",
            "UPDATE state.budget_raises SET max_tokens = max_tokens + 1 WHERE budget_id = '$holder'",
        )
    ),
    Damage(
        "closed_budgets_gave_back_the_rest",
        BUDGET.format("closed_at = NULL", "spent"),
        {"budget_id": "$spent", "agent_turn_id": "$spent"},
        {"budgets_count_what_is_spent", "budgets_reserve_what_is_open"},
    ),
    Damage(
        "closed_budgets_gave_back_the_rest",
        BUDGET.format("ended_at = now(), closed_at = now()", "holder"),
        {"budget_id": "$holder"},
        {"budgets_count_what_is_spent", "budgets_reserve_what_is_open", "turns_that_are_over_hold_nothing"},
    ),
    Damage(
        "turns_that_are_over_hold_nothing",
        BUDGET.format("ended_at = now()", "spending"),
        {"agent_turn_id": "$spending"},
    ),
    Damage(
        "turns_that_are_over_hold_nothing",
        "UPDATE state.budget_reservations SET status = 'open', used_tokens = NULL, used_cost = NULL, settled_at = NULL"
        " WHERE agent_turn_id = '$spent' AND attempt = 1",
        {"agent_turn_id": "$spent"},
        {"budgets_count_what_is_spent", "budgets_reserve_what_is_open"},
    ),
    Damage(
        "turns_are_charged_somewhere",
        ROW.format("payload = jsonb_set(payload, '{budget,cost}', '[\"nobody\"]')", "inbox_id = '$spending_row'"),
        {"agent_turn_id": "$spending", "budget_id": "nobody"},
    ),
]


class _Undone(Exception):
    """The end of a transaction that is rolled back."""


@dataclass(frozen=True)
class Healthy:
    """A connection to the healthy ledger, and the names of what is in it."""

    conn: Session
    pool: Pool
    names: dict[str, str]

    @asynccontextmanager
    async def undone(self) -> AsyncGenerator[None]:
        """A transaction that is rolled back."""
        with suppress(_Undone):
            async with self.conn.transaction():
                yield
                raise _Undone

    async def broken(self, damage: Damage) -> list[Violation]:
        """What is wrong once the damage is done, in the transaction of the connection."""
        await self.conn.execute(Template(damage.sql).substitute(self.names))
        return await violations(self.conn, BOUNDS)

    async def found(self, rule: str, scope: Scope) -> list[dict[str, str]]:
        """The ids that one rule gives for a scope."""
        asked, values = rules()[rule], arguments(scope, BOUNDS, 20)
        rows = await asked.query.many(self.conn, **{name: values[name] for name in asked.query.parameters})
        return [violation(asked, Finding.model_validate(dict(row))).ids for row in rows]


@pytest.fixture(scope="module")
async def healthy(databases: Databases, migrated: str) -> AsyncIterator[Healthy]:
    """One ledger for all tests here, which undo what they do."""
    name = await databases.create(migrated)
    pool = Pool(databases.url(name), size=4, name="test")
    names = await make_healthy(pool)
    async with pool.connection() as conn:
        yield Healthy(conn, pool, names)
    await pool.close()
    await databases.drop(name)


@pytest.fixture(scope="module")
async def unguarded(healthy: Healthy) -> AsyncIterator[Healthy]:
    """That ledger for damages: triggers sleep in all of the session, since a change of that makes it plan anew."""
    async with healthy.pool.connection() as conn:
        await conn.execute("SET session_replication_role = replica")
        yield replace(healthy, conn=conn)


def contains(found: dict[str, str], wanted: dict[str, str]) -> bool:
    return wanted.items() <= found.items()


@pytest.mark.parametrize("damage", [pytest.param(each, id=f"{each.rule}-{n}") for n, each in enumerate(DAMAGES)])
async def test_a_broken_rule_is_told_with_its_ids(unguarded: Healthy, damage: Damage) -> None:
    ids = {name: Template(value).substitute(unguarded.names) for name, value in damage.ids.items()}
    lately = datetime.now(UTC) - timedelta(hours=1)
    async with unguarded.undone():
        found = await unguarded.broken(damage)
        told = [each for each in found if each.rule == damage.rule]
        assert {each.rule for each in found} == {damage.rule} | damage.others, found
        assert any(contains(each.ids, ids) for each in told), told
        assert all(each.detail and each.section == rules()[damage.rule].section for each in told)
        for scope in (Scope(PROJECT), Scope(since=lately), Scope(PROJECT, lately)):
            assert any(contains(each, ids) for each in await unguarded.found(damage.rule, scope)), scope
        assert await unguarded.found(damage.rule, Scope(ProjectId("other"))) == []


def test_every_rule_is_broken_here() -> None:
    assert {damage.rule for damage in DAMAGES} == rules().keys()


def test_every_rule_is_in_the_manual() -> None:
    manual = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    assert [name for name in [*rules(), LOST, OVER] if f"`{name}`" not in manual] == []


async def test_a_healthy_ledger_breaks_no_rule(healthy: Healthy) -> None:
    assert await violations(healthy.conn, BOUNDS) == []
    for scope in (Scope(), Scope(PROJECT), Scope(since=datetime.now(UTC) - timedelta(hours=1))):
        done = await audit(healthy.pool, scope, Bounds(), row_limit=9)
        assert (list(done.violations), [each.rule for each in done.rules]) == ([], list(rules()))


IN_TIME = (
    *("claims_are_short", "due_rows_are_taken", "deadlines_are_kept", "stops_are_obeyed"),
    "expired_interrupts_are_closed",
)


@pytest.mark.parametrize("damage", [pytest.param(each, id=each.rule) for each in DAMAGES if each.rule in IN_TIME])
async def test_what_nobody_serves_may_be_late(unguarded: Healthy, damage: Damage) -> None:
    async with unguarded.undone():
        await unguarded.conn.execute("UPDATE state.workers SET last_seen_at = now() - interval '2 hours'")
        assert await unguarded.broken(damage) == []


async def test_a_sleeper_without_a_deadline_is_told_as_one(healthy: Healthy) -> None:
    async with healthy.undone():
        await healthy.conn.execute(f"{NO_DEADLINE};{head('bob', f'resume_deadline = NULL, updated_at = {LATE}')}")
        assert await violations(healthy.conn, BOUNDS) == []  # the report has just come
        await healthy.conn.execute(TOLD_LATE)
        told = [each for each in await violations(healthy.conn, BOUNDS) if each.rule == "deadlines_are_kept"]
        assert [each.detail for each in told] == ["asleep, with a report and without a deadline"]


STRANGERS = (
    "inbox_id, project_id, agent_id, message_type, correlation_id, agent_turn_id, turn_epoch, status, archived_at"
)


@pytest.mark.parametrize(
    "row",
    ["'stranger', 1, 'pending', NULL", "'stranger', 1, 'skipped', now()", "'stranger', 1, 'error', now()"],
)
async def test_a_row_that_a_stranger_wrote_is_no_turn(healthy: Healthy, row: str) -> None:
    async with healthy.undone():
        await healthy.conn.execute(
            f"INSERT INTO state.agent_inbox ({STRANGERS}) VALUES ('x', 'p1', 'alice', 'turn', 'x', {row})"  # noqa: S608
        )
        assert await violations(healthy.conn, BOUNDS) == []


async def test_a_copy_of_a_box_is_no_second_place(healthy: Healthy) -> None:
    """An instruction on top of another turn's output box: enqueue copies its cards."""
    async with healthy.undone():
        await ask(_Pinned(healthy.conn), ALICE, context_box_id=healthy.names["called_box"])
        copied = await healthy.conn.fetch("SELECT FROM box_cards WHERE card_id = 'answered-result'")
        assert len(copied) == 2
        assert await violations(healthy.conn, BOUNDS) == []


class _Pinned(Pool):
    """One connection, in its transaction, as a pool."""

    def __init__(self, conn: Session) -> None:
        super().__init__("postgresql://")
        self.conn = conn

    async def run(self, transition: Any) -> Any:
        return await transition(self.conn)


async def test_an_audit_sees_one_moment_and_cannot_write(healthy: Healthy) -> None:
    async with healthy.undone():
        await query("begin_audit").many(healthy.conn)
        before = await healthy.conn.fetch("SELECT max(profile_box_id) FROM resource.profiles")
        await add_agents(healthy.pool, project=PROJECT)  # puts the profile anew
        assert await healthy.conn.fetch("SELECT max(profile_box_id) FROM resource.profiles") == before
        with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
            await healthy.conn.execute("UPDATE state.duties SET taken_at = now()")


async def test_a_server_that_goes_away_is_named(healthy: Healthy) -> None:
    async with healthy.undone():
        await healthy.conn.execute("LOCK TABLE state.turn_outcomes IN ACCESS EXCLUSIVE MODE")
        auditing = asyncio.create_task(audit(healthy.pool, Scope(), Bounds(), row_limit=9))
        await until_waiting(healthy.pool)
        await healthy.conn.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            " AND datname = current_database()"
        )
        with pytest.raises(ServerUnavailable, match="no answer from"):
            await auditing


async def test_a_rule_gives_so_many_violations_and_says_that_there_are_more(healthy: Healthy) -> None:
    async with healthy.undone():
        await healthy.conn.execute("UPDATE state.turn_outcomes SET channel_id = 'x'")
        done = await check_rules(healthy.conn, Scope(), BOUNDS, row_limit=2)
        [told] = [each for each in done.rules if each.violations]
        assert (told.rule, told.violations, told.cut) == ("outcome_agrees_with_its_row", 2, True)
        assert len(done.violations) == 2
        assert not any(each.cut for each in done.rules if each is not told)


async def test_a_window_leaves_out_what_was_enqueued_before(healthy: Healthy) -> None:
    async with healthy.undone():
        await healthy.conn.execute("UPDATE state.turn_outcomes SET channel_id = 'x'")
        later = Scope(since=datetime.now(UTC) + timedelta(hours=1))
        assert await healthy.found("outcome_agrees_with_its_row", later) == []
        assert await healthy.found("outcome_agrees_with_its_row", Scope()) != []


def test_ids_of_turns_since_a_moment_sort_after_it() -> None:
    second = timedelta(seconds=1)
    before, after = Scope(since=datetime.now(UTC) - second), Scope(since=datetime.now(UTC) + second)
    assert before.since_id is not None
    assert after.since_id is not None
    assert before.since_id < uuid7() < after.since_id
    assert (Scope().since_id, Scope().whole, Scope(PROJECT).whole, before.whole) == (None, True, False, False)


async def test_ended_turns_of_the_benchmark_break_no_rule(database_url: str) -> None:
    await fill(database_url, 600)
    pool = Pool(database_url, size=1, name="test")
    for scope in (Scope(), Scope(ProjectId("p1")), Scope(since=datetime.now(UTC) - timedelta(days=30))):
        done = await audit(pool, scope, Bounds(), row_limit=9)
        assert list(done.violations) == []
    async with pool.connection() as conn:
        [counted] = await conn.fetch("SELECT count(*) AS turns FROM state.turn_outcomes")
    assert counted["turns"] == 600
    await pool.close()
