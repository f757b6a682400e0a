"""Every named query against the real server: it prepares, its columns are its model's, and its purpose is written."""

import re
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic import BaseModel

from tests.support.databases import Databases
from tests.support.paths import ROOT
from turnstile.ledger import queries, roster, schedules
from turnstile.ledger.access import (
    addressees,
    calls_out,
    chats,
    costs,
    dead_letters,
    fleet,
    now,
    past,
    profile_versions,
    tokens,
)
from turnstile.ledger.access.tasks import TargetDescription, TaskRow
from turnstile.ledger.budgets import attempts, model_queues, prices
from turnstile.ledger.delegation import provision, targets
from turnstile.ledger.files.artifacts import FileRow, KeptFile, LeavingFile
from turnstile.ledger.operations import audit, deletion, export, monitor, recovery, removal, sweep
from turnstile.ledger.people import call_questions, decisions, interrupt_views, multitask, reruns, steers, unknown_calls
from turnstile.ledger.pool import Pool
from turnstile.ledger.pump import hops, thread_views, threads
from turnstile.ledger.pushes.receivers import ClaimedPush, Receiver
from turnstile.ledger.pushes.webhooks import ClaimedEvent
from turnstile.ledger.queries import Query, all_queries, parse
from turnstile.ledger.trees import batches
from turnstile.ledger.turns import action_lookup, intake, lease, steps, usage, views, waiting
from turnstile.rules import hop, transcript, turn_ends
from turnstile.schema.api import TurnSummary, UsageLine
from turnstile.schema.cards import FilePart
from turnstile.schema.people.interrupts import Interrupt
from turnstile.schema.pump.declared import ListenerView
from turnstile.schema.pump.threads import ThreadRef
from turnstile.schema.tools import ToolRow
from turnstile.schema.turns import Ring
from turnstile.schema.wire import descriptions, roster_requests
from turnstile.schema.wire.box_requests import AgentBoxes
from turnstile.schema.wire.deletion_requests import Deletion
from turnstile.schema.wire.descriptions import TreeTurn
from turnstile.schema.wire.schedule_requests import Firing
from turnstile.schema.wire.webhook_requests import WebhookView

CARD = {"card_id", "content", "tool_calls", "tool_call_id", "metadata"}
AGENT_KEY = {"project_id", "agent_id"}
NOTHING: set[str] = set()
SCHEMA = {"tables", "views", "functions", "migrations"}
"""The folders whose SQL has no names: what the database consists of."""
PAGE = {"last", "found"}
SUMS = ("max", "spent", "reserved", "past", "returned", "from")
BUDGET = {
    *("budget_id", "project_id", "channel_id", "kind", "agent_turn_id", "depth", "until", "warn_percent", "warned_at"),
    *("lowered_at", "ended_at", "closed_at", "created_at", "updated_at", "updated_by"),
    *(
        f"{each}_{of}"
        for each in ("max", "spent", "reserved", "past", "returned", "from")
        for of in ("tokens", "cost", "turns")
    ),
    *(f"{each}_{of}" for each in ("unsettled", "beyond") for of in ("tokens", "cost")),
}

ENQUEUED = {
    *("verdict", "agent_turn_id", "turn_epoch", "inbox_id", "inbox_status", "context_box_id", "output_box_id"),
    *("trace_id", "context_headers", "worker_target", "leased_at", "agent_id", "conversation_id", "is_stranded"),
    *("claimed", "profile_box_id", "queued_because", "budget", "correlation_id", "created_at"),
}
READERS: Mapping[str, type[BaseModel] | set[str]] = {
    "get_task": TaskRow,
    "page_tasks": TaskRow,
    "page_tasks_of_agent": TaskRow,
    "read_tasks": TaskRow,
    "page_tasks_of_conversation": TaskRow,
    "page_tasks_of_instances_talk": TaskRow,
    "count_tasks": {"total"},
    "count_tasks_of_agent": {"total"},
    "page_tasks_of_agent_in_channel": TaskRow,
    "count_tasks_of_agent_in_channel": {"total"},
    "count_tasks_of_conversation": {"total"},
    "count_tasks_of_instances_talk": {"total"},
    "describe_target": TargetDescription,
    "set_receiver": {"verdict"},
    "remove_receiver": {"found"},
    "claim_pushes": ClaimedPush,
    "record_push": {"recorded"},
    "fail_push": {"given_up"},
    "list_receivers": Receiver,
    "read_clock": {"now"},
    "put_schedule": {"verdict", "created"},
    "put_wake": {"verdict", "schedule", "fires_at"},
    "find_schedule": schedules.ScheduleRow,
    "list_schedules": schedules.ListedSchedule,
    "list_due_schedules": schedules.ScheduleRow,
    "list_stuck_schedules": schedules.StuckSchedule,
    "list_firings": Firing,
    "fire_schedule": ENQUEUED | {"fired"},
    "pause_schedule": {"schedule_id"},
    "resume_schedule": {"schedule_id"},
    "remove_schedule": {"schedule_id"},
    "list_old_firings": PAGE,
    "remove_firings": {"id"},
    "list_old_files": PAGE,
    "lock_files": {"id"},
    "remove_files": {"id"},
    "list_kept_files": KeptFile,
    "list_unknown_objects": {"name"},
    "begin_artifact": {"verdict", "artifact"},
    "commit_artifact": {"verdict", "artifact"},
    "read_artifact": FileRow,
    "file_parts": FilePart,
    "ready_files": FileRow,
    "list_artifacts": FileRow,
    "remove_artifact": {"found"},
    "list_leaving": LeavingFile,
    "close_files": LeavingFile,
    "forget_artifact": set(),
    "put_webhook": {"verdict"},
    "remove_webhook": {"found"},
    "list_webhooks": WebhookView,
    "claim_events": ClaimedEvent,
    "record_event_sent": {"recorded"},
    "fail_event": {"given_up"},
    # the model that reads a query's rows, or the columns that its function reads
    "agent_boxes": AgentBoxes,
    "add_card": NOTHING,
    "add_message": NOTHING,
    "add_reply": NOTHING,
    "add_segment": NOTHING,
    "add_token": tokens.TokenLine,
    "add_thread": NOTHING,
    **dict.fromkeys(audit.rules(), audit.Finding),
    "applied_schema_files": {"name", "checksum"},
    "apply_reports": waiting.AppliedReports,
    "await_turn": {"message_id"},
    "begin_audit": NOTHING,
    "begin_message": hop.BegunMessage,
    "begin_step": CARD | {"part", "position", "expires_at"},
    "box_cards": CARD,
    "page_of_box": CARD | {"position"},
    "claim_inbox": lease.Claim,
    "enter_era": {"epoch_floor", "timeline_id"},
    "find_era": recovery.Era,
    "find_history": {"epoch_floor", "timeline_id"},
    "find_uncompared": recovery.NewEra,
    "list_carried": lease.LiveTurn,
    "record_compared": NOTHING,
    "record_beyond": {"agent_turn_id", "error"},
    "close_requests": NOTHING,
    "close_thread": NOTHING,
    "commit_plain_step": steps.CommittedStep,
    "commit_step": steps.CommittedStep,
    "begin_export": NOTHING,
    "begin_retention": {"retention", "hashjoin", "mergejoin"},
    "confirm_boxes": {"id"},
    "compose_box": {"verdict", "refused_place", "cards"},
    "confirm_in_hand": {"agent_turn_id"},
    "copy_boxes_of_turn": reruns.CopiedBoxes,
    "begin_call": {"may_run"},
    "list_unsure": unknown_calls.UnsureCall,
    "settle_unknown": {"settled"},
    "count_project_threads": {"found"},
    "count_box_cards": {"found"},
    "count_live_threads": {"found"},
    "count_project_rows": {"found"},
    "describe_export": {"exported_at", "schema_hash"},
    **{f"export_{table.partition('.')[2]}": {"row"} for table in export.TABLES},
    "leave_retention": {"left"},
    "list_live_turns": {"agent_turn_id"},
    "list_loose_rows": PAGE,
    "list_old_rejections": PAGE,
    "list_old_events": PAGE,
    "list_project_tables": removal.ProjectTable,
    "list_prunable_boxes": PAGE,
    "list_prunable_conversations": PAGE,
    "list_unused_instances": PAGE,
    "lock_instances": {"id"},
    "judge_instances": {"id", "only_turn_id", "sleeps"},
    "sleep_instances": NOTHING,
    "remove_instances": NOTHING,
    "list_prunable_threads": PAGE,
    "list_prunable_turns": PAGE,
    "list_thread_cards": {"card_id"},
    "list_turn_cards": {"card_id"},
    "lock_boxes": {"id"},
    "lock_project": {"agent_id"},
    "remove_boxes": {"boxes", "cards"},
    "remove_cards": {"id"},
    "remove_conversations": {"id"},
    "remove_loose_rows": {"id"},
    "remove_project_places": NOTHING,
    "remove_project_rows": {"found"},
    "remove_rejections": {"id"},
    "remove_events": {"id"},
    "remove_threads": {"id"},
    "remove_turns": {"id"},
    "take_retention": {"taken"},
    "tune_export": {"plans", "seqscan", "timeout", "idle"},
    "count_open_messages": {"found"},
    "count_open_threads": {"found"},
    "declare_listeners": NOTHING,
    "describe_call": (set(descriptions.CallView.model_fields) | {"held"}) - {"may_run"},
    "describe_turn": descriptions.TurnView,
    "dispatch_next": turn_ends.NewLease,
    "end_message": hops._Ended,
    "enqueue_turn": ENQUEUED,
    "find_targets": targets.Target,
    "find_peer_call": set(batches.ParentCall.model_fields) - {"call_key", "call_digest", "guards"},
    "answer_peer_call": {"inbox_id", "in_hand", "answered"},
    "read_prompt_roster": {"display_name", "profiles"},
    "find_action": set(action_lookup.ActionTurn.model_fields) | {"tool"},
    "count_in_hand": recovery.InHand,
    "find_in_hand": lease.LiveTurn,
    "list_not_in_hand": {"agent_turn_id"},
    "list_unknown": {"agent_turn_id"},
    "name_ledger": {"ledger_id"},
    "find_message": threads._EarlierMessage,
    "find_roles": {"role", "found", "is_owner"},
    "find_request": {"payload"},
    "find_thread": descriptions.ThreadLine,
    "finish_running_turn": turn_ends.FinishedTurn,
    "finish_turn": turn_ends.FinishedTurn,
    "fork_box": {"verdict"},
    "get_card": CARD,
    "holder_of": {"holder"},
    "inject_timeouts": Ring,
    "is_raised": {"raised"},
    "list_agents": roster_requests.AgentLine,
    "list_canceled_turns": thread_views.ThreadTurn,
    "ledger_time": {"now"},
    "list_due_agents": AGENT_KEY | {"is_deferred", "due_seconds"},
    "follow_clock": AGENT_KEY,
    "list_ended_messages": thread_views.EndedMessage,
    "list_ended_turns": audit.AuditedTurn,
    "list_expected_workflows": audit.AuditedTurn,
    "list_grants": {"statement"},
    "list_in_hand": lease.LiveTurn,
    "list_inbox": views.InboxLine,
    "look_around": monitor.SystemStatus,
    "list_target_uses": monitor.TargetUse,
    "list_live_workers": monitor.LiveWorker,
    "list_tool_targets": monitor.ToolTarget,
    "list_late_replies": hop.ThreadReply,
    "list_open_threads": ThreadRef,
    "list_over": recovery.OverTurn,
    "list_overdue": lease.LiveTurn,
    "list_profile_models": usage.ProfileModel,
    "list_profiles": roster.ProfileRow,
    "list_own_repairs": recovery.Repairs,
    "list_repairs": recovery.Repairs,
    "list_replies": hop.ThreadReply,
    "list_silent": recovery.SilentTurn,
    "list_stalled_threads": ThreadRef,
    "list_steps": transcript.StepView,
    "list_stranded": AGENT_KEY,
    "end_orphans": sweep.Orphan,
    "list_stops_overdue": lease.LiveTurn,
    "list_thread_messages": descriptions.MessageLine,
    "list_thread_payloads": {"message_id", "payload"},
    "list_thread_replies": descriptions.ReplyLine,
    "list_listeners": set(ListenerView.model_fields),
    "list_served": {"listener", "workers"},
    "list_unserved": thread_views.Unserved,
    "list_threads": descriptions.ThreadLine,
    "list_tools": ToolRow,
    "list_turns": views.TurnLine,
    "list_addressees": addressees.Addressee,
    "sum_turn_usage": usage.TurnUsage,
    "list_token_labels": tokens.TokenLabel,
    "list_tokens": tokens.TokenLine,
    "look_at_live_turns": now.LiveTurns,
    "page_turns_with_use": now.TurnWithUse,
    "page_turns_with_use_of_agent": now.TurnWithUse,
    "page_turns_with_use_of_channel": now.TurnWithUse,
    "search_turns": now.SearchHit,
    "list_turn_calls": now.TurnCall,
    "list_turn_inputs": CARD,
    "list_cards": CARD,
    "list_cards_of_steps": CARD,
    "describe_place": now.TurnPlace,
    "list_turn_progress": CARD | {"step_id", "step_status", "finish_reason", "part", "place", "sub"},
    "is_box_of_channel": {"found"},
    "list_chats": chats.ChatLine,
    "list_chat_turns": chats.ChatTurn,
    "list_chat_cards": CARD | {"agent_turn_id", "step_id", "part", "place", "steer_status", "size"},
    "list_recent_conversations": {"agent_id", "conversation_id", "channel_id"},
    **{
        f"list_recent_conversations_of_{by}": {"agent_id", "conversation_id", "channel_id"}
        for by in ("agent", "channel", "agent_in_channel")
    },
    "get_turn_request": past.TurnRequest,
    "list_turn_past": {"card_id"},
    "list_calls_out": calls_out.ListedCall,
    "get_call_out": calls_out.CallFile,
    "list_dead_letters": dead_letters.DeadLetter,
    "list_rejections": dead_letters.Rejection,
    "page_agents": fleet.AgentFile,
    "list_queue": fleet.QueuedTurn,
    "list_processes": fleet.Process,
    "list_target_needs": fleet.TargetNeed,
    "list_profile_versions": profile_versions.ProfileVersion,
    "get_profile_version": profile_versions.ProfileText,
    "list_tool_users": profile_versions.ToolUser,
    "sum_costs": costs._Row,
    "list_last_turns": {"agent_turn_id", "conversation_seq"},
    "list_turns_after": {"agent_turn_id", "conversation_seq"},
    "find_turn_place": {"agent_turn_id", "conversation_seq"},
    "page_conversations": views.ConversationLine,
    "page_conversations_of_agent": views.ConversationLine,
    "page_conversations_of_channel": views.ConversationLine,
    "page_turns": TurnSummary,
    "page_turns_of_agent": TurnSummary,
    "page_turns_of_agent_in_channel": TurnSummary,
    "page_turns_of_channel": TurnSummary,
    "page_turns_of_conversation": TurnSummary,
    "page_turns_of_end_user": TurnSummary,
    "request_deletion": deletion.RequestedDeletion,
    "advance_deletion": deletion.AdvancedDeletion,
    "list_running_deletions": deletion.RunningDeletion,
    "count_running_deletions": {"found"},
    "get_deletion": Deletion,
    "find_text": deletion.TextFound,
    "page_addressees": addressees.AddresseeLine,
    "find_requested_turn": {"agent_turn_id"},
    "find_addressed_agent": addressees.Addressee,
    "find_addressed_profile": addressees.Addressee,
    "find_tokens": tokens._FoundToken,
    "revoke_token": tokens.TokenLine,
    "list_calls": transcript.SentCall,
    "list_conversations": views.ConversationLine,
    "list_conversation_turns": views.SaidTurn,
    "find_conversations": views.ConversationLine,
    "find_turns": {"agent_turn_id"},
    "find_kept_conversations": chats.KeptConversation,
    "put_conversation": {"verdict", "agent_id", "box_id", "notes"},
    "hold_agent": {"agent_id"},
    "count_agent_work": {"live", "queued"},
    "forget_agent": NOTHING,
    "head_epoch": {"turn_epoch"},
    "keep_epoch": NOTHING,
    "profile_box": {"profile_box_id"},
    "list_unannounced": sweep.Unannounced,
    "list_undispatched": lease.LiveTurn,
    "locate_turn": lease.LiveTurn,
    "find_schema": {"is_there", "is_of_before"},
    "leave_bodies_unchecked": NOTHING,
    "lock_schema": {"pg_advisory_lock"},
    "lock_thread": threads.LockedThread,
    "look_at_thread": threads._Look,
    "made_way": {"stopped"},
    "make_box": NOTHING,
    "lock_conversation": NOTHING,
    "make_way": multitask.DisplacedTurn,
    "mark_announced": NOTHING,
    "measure_inbox": monitor.InboxLag,
    "mark_replied": {"request_id"},
    "messages_of_turns": thread_views.TurnMessage,
    "prune_segment": {"message_id", "request_id"},
    "put_agent": {"verdict", "worker_target"},
    "put_profile": {"verdict", "agents"},
    "put_tool": {"created"},
    "own_box": {"output_box_id"},
    "recorded_end": turn_ends.FinishedTurn,
    "recorded_step": steps.CommittedStep,
    "recall_step": turn_ends.RecalledStep,
    "record_schema_file": NOTHING,
    "record_repairs": NOTHING,
    "reject": NOTHING,
    "release_claims": {"inbox_id"},
    "release_stale_claims": AGENT_KEY,
    "provision_agent": {"verdict"},
    "provision_facts": provision.Facts,
    "remove_tool": {"tool_name"},
    "replace_boxes": set(AgentBoxes.model_fields) | {"verdict"},
    "report_call": {
        *("verdict", "inbox_id", "agent_id", "agent_turn_id", "turn_epoch", "wait_status", "channel_id"),
        *("worker_target", "context_headers"),
    },
    "request_stop": waiting.RequestedStop,
    "find_call": set(batches.ParentCall.model_fields) - {"call_key", "call_digest", "peer_card_id"},
    "find_own_batch": batches.OwnBatch,
    "retry_forks": sweep.SilentCall,
    "list_undecided": sweep.Undecided,
    "list_marked_queued": sweep.MarkedTurn,
    "list_marked_in_hand": lease.LiveTurn,
    "open_batch": {"verdict"},
    "enqueue_children": {
        *("task_index", "verdict", "agent_id", "agent_turn_id", "inbox_id", "turn_epoch", "leased_at", "worker_target"),
        *("channel_id", "context_headers", "context_box_id", "output_box_id", "refusal"),
    },
    "list_tasks": (set(batches.ForkedTask.model_fields) - {"lease"}) | {"batch_status"},
    "find_delegated": {
        *("agent_id", "agent_turn_id", "turn_epoch", "inbox_id", "status", "context_box_id", "output_box_id"),
    },
    "expire_batch": {"status"},
    "find_call_question": call_questions.CallQuestion,
    "ask_under_call": {"asked"},
    "step_of_call": {"step"},
    "page_call_history": {"part", "position", "card_id", "content", "metadata"},
    "find_question": decisions.InterruptToDecide,
    "decide_interrupt": {"decided"},
    "list_expired": decisions.ExpiredInterrupt,
    "expire_interrupt": {"expired"},
    "count_open_interrupts": {"open"},
    **{name: set(Interrupt.model_fields) for name in ("list_interrupts", "list_open_interrupts")},
    "list_interrupts_of_turn": set(Interrupt.model_fields),
    "list_call_contents": {"card_id", "content", "added"},
    "list_client_calls": interrupt_views.ClientCall,
    "get_interrupt_context": interrupt_views.InterruptContext,
    "get_interrupt": set(Interrupt.model_fields) | {"content", "added"},
    "mark_tree": {"marked"},
    "count_on_their_way": {"on_their_way"},
    "list_rings": turn_ends.Lease,
    "measure_spending": monitor.Spending,
    "list_tree": TreeTurn,
    "reserve_attempt": attempts.Reservation,
    **dict.fromkeys(("get_budget", "list_budgets", "list_budgets_of_turn"), BUDGET),
    "list_charged_turns": {"agent_turn_id"},
    "list_turns_of_tree": {"agent_turn_id"},
    "list_project_limits": {"period", "max_tokens", "max_cost", "max_turns", "updated_at", "updated_by"},
    "raise_budget": {"verdict", "detail"},
    "price_sources": prices.PriceSource,
    "has_price": {"known"},
    "store_prices": {"written"},
    "swap_model_queue": model_queues.StoredQueue,
    "load_model_queues": model_queues.LoadedQueue,
    "list_model_queues": model_queues.QueueView,
    "drop_prices": {"gone"},
    "limit_project": {"budget_id"},
    "restart_turn": {"restart_count"},
    "retry_commands": sweep.SilentCall,
    "retry_dispatched": AGENT_KEY,
    "retry_resumes": AGENT_KEY,
    "retry_step": {"step_attempt", "model_failures"},
    "server_version": {"number", "text", "read_only", "plan_cache_mode"},
    "session_process": {"pid"},
    "set_agent_status": {"verdict"},
    "steer_turn": steers.AcceptedSteer,
    "stop_queued_turn": intake.QueuedStop,
    "store_probe": NOTHING,
    "sum_usage": UsageLine,
    "still_holds": {"held"},
    "sign_off": NOTHING,
    "take_duty": {"duty"},
    "top_segment": {"segment_id"},
    "touch_bridge": NOTHING,
    "touch_worker": NOTHING,
    "tune_audit": {"plans", "timeout", "work_mem", "seqscan", "random_page_cost", "nestloop", "mergejoin", "sort"}
    | {"seq_page_cost", "tuple_cost", "index_tuple_cost", "operator_cost", "workers"},
    "turn_requester": {"requester"},
    "find_steer": (set(steers.AcceptedSteer.model_fields) - {"verdict"}) | {"request_digest", "agent_turn_id"},
    "try_hold": {"held", "backend", "read_only"},
    "unlock_schema": {"pg_advisory_unlock"},
}

TEXT = {"text"}
JSON = {"jsonb"}
TIME = {"timestamptz"}
NUMBER = {"int4", "int8"}


def named(names: Mapping[str, Any]) -> list[Any]:
    return [pytest.param(names[name], id=name) for name in sorted(names)]


def test_every_query_has_a_reader_and_every_reader_a_query() -> None:
    assert all_queries().keys() == READERS.keys()


@pytest.fixture(scope="module")
async def conn(databases: Databases, migrated: str) -> AsyncIterator[Any]:
    """A connection on which queries are prepared only."""
    name = await databases.create(migrated)
    pool = Pool(databases.url(name), size=1)
    async with pool.connection() as conn:
        yield conn
    await pool.close()
    await databases.drop(name)


@pytest.mark.parametrize("query", named(all_queries()))
async def test_a_query_prepares_and_gives_what_its_reader_reads(conn: Any, query: Query) -> None:
    statement = await conn.prepare(query.sql)
    columns = {attribute.name: attribute.type.name for attribute in statement.get_attributes()}
    assert len(statement.get_parameters()) == len(query.parameters)
    reader = READERS[query.name]
    if isinstance(reader, set):
        assert columns.keys() == reader
    else:
        assert columns.keys() == reader.model_fields.keys()
        for name, field in reader.model_fields.items():
            assert columns[name] in sql_types(str(field)), (name, columns[name], str(field))
    assert query.mode != "exec" or not columns or query.name.endswith("lock_schema")


def sql_types(field: str) -> set[str]:
    """The SQL types whose values fit a field. `infinity` is why no raw time of an inbox row is read."""
    words: list[tuple[str, set[str]]] = [
        ("Json", JSON),
        ("read_column", JSON),
        ("ActionRef", JSON),
        (r"Union\[(TurnBudget|BudgetView)", JSON),
        ("annotation=dict", JSON),
        (r"tuple\[(NewType|Decision)", {"text[]", "_text"}),
        ("tuple", JSON),
        (r"Annotated\[dict", JSON),
        ("datetime", TIME),
        ("annotation=bool", {"bool"}),
        ("annotation=(list|tuple)", {"text[]", "_text"}),
        ("float", {"float8"}),
        ("Decimal", {"numeric"}),
        ("bytes", {"bytea"}),
        ("int", NUMBER),
    ]
    return next((types for word, types in words if re.search(rf"\b{word}\b", field)), TEXT)


@pytest.mark.parametrize("query", named(all_queries()))
def test_a_query_says_what_it_is_for(query: Query) -> None:
    assert re.fullmatch(r"[A-Z`'p].{15,}", query.purpose), query.purpose


def test_a_query_is_called_with_its_parameters_by_name() -> None:
    [query] = parse("-- name: find :many\n-- Rows.\nSELECT :b::text, ':c' || :a, :b, now()::date -- :d\n;\n").values()
    assert query.sql == "SELECT $1::text, ':c' || $2, $1, now()::date \n"
    assert query.parameters == ("b", "a")


def test_lists_of_message_types_are_of_the_one_table() -> None:
    [query] = parse("-- name: find :many\n-- Rows.\nSELECT '{turn_types}' WHERE kind IN {turn_types};\n").values()
    assert query.sql == "SELECT '{turn_types}' WHERE kind IN ('turn', 'ui_action')", "as in the partial indexes"
    files = (path for path in (ROOT / "ledger").rglob("*.sql") if path.parent.name not in SCHEMA)
    assert [path.name for path in files if re.search(r"message_type (NOT )?IN \(", path.read_text("utf-8"))] == []


def test_a_fragment_is_written_out_with_its_arguments() -> None:
    call = "{result_metadata('a, b', f(x, y), s.step_id, :turn::text, NULL, h.parent_step_id)}"
    [query] = parse(f"-- name: find :many\n-- Rows.\nSELECT {call} FROM s;\n").values()
    assert "'author_id', 'a, b', 'function_name', f(x, y)," in query.sql
    assert "'agent_turn_id', $1::text, 'trace_id', NULL)" in query.sql
    assert query.sql.count("h.parent_step_id") == 2
    assert query.parameters == ("turn",)
    for wrong, why in (
        ("{nothing}", "there is no fragment nothing"),
        ("{error_result('failed')}", "takes 4 arguments"),
    ):
        with pytest.raises(ValueError, match=why):
            parse(f"-- name: find :many\n-- Rows.\nSELECT {wrong};\n")


def test_results_of_tools_and_a_leased_head_are_spelled_once() -> None:
    files = (path for path in (ROOT / "ledger").glob("*/*.sql") if path.parent.name not in SCHEMA)
    text = "".join(path.read_text("utf-8") for path in files)
    assert "enqueue_turn" in text
    assert "ToolResultContent" not in text
    assert not re.search(r"'type', 'tool.result'|step_attempt = 0, model_failures = 0, started_at", text)


def test_a_fence_is_a_fragment_with_its_reason() -> None:
    files = (path for path in (ROOT / "ledger").glob("*/*.sql") if path.parent.name not in SCHEMA)
    assert [path.name for path in files if re.search(r"^[^-]*OFFSET 0", path.read_text("utf-8"), re.MULTILINE)] == []


async def test_a_missing_or_unknown_parameter_is_an_error() -> None:
    for arguments in ({}, {"card_id": "c", "project_id": "p", "other": 1}):
        with pytest.raises(TypeError, match="get_card"):
            await queries.query("get_card").many(cast("Any", None), **arguments)


def test_a_query_that_is_defined_twice_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("a.sql", "b.sql"):
        (tmp_path / name).write_text("-- name: same :exec\n-- Twice.\nSELECT 1;\n", encoding="utf-8")

    def files(_: str) -> Path:
        return tmp_path

    monkeypatch.setattr(queries.resources, "files", files)
    with pytest.raises(ValueError, match="same is defined twice"):
        all_queries.__wrapped__()


SQL = re.compile(r"\b(SELECT|INSERT INTO|DELETE FROM|CREATE TABLE|UPDATE \w+\.\w+ SET)\b")


def test_there_is_no_sql_in_python() -> None:
    files = [
        path
        for room in ("rules", "ledger", "transport", "sdk", "activities", "workflows", "bridge")
        for path in (ROOT / room).rglob("*.py")
    ]
    assert files
    assert [str(path) for path in files if SQL.search(path.read_text(encoding="utf-8"))] == []


def test_only_the_ledger_imports_asyncpg() -> None:
    rooms = ("schema", "runtime", "rules", "transport", "sdk", "activities", "workflows", "bridge", "turnstile")
    files = [path for room in rooms for path in (ROOT / room).rglob("*.py")]
    imported = re.compile(r"^\s*(?:import|from) asyncpg\b", re.MULTILINE)
    assert [str(path) for path in files if imported.search(path.read_text(encoding="utf-8"))] == []
