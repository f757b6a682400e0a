"""A project with many turns, live and past, and a large tree, written as rows: only what pages read of them.

No worker runs these turns, no bridge mends them, and no audit is asked about them.
"""

from turnstile.ledger.pool import Pool
from turnstile.schema.ids import AgentTurnId, ProjectId

_FILL = (
    "SET LOCAL session_replication_role = replica",  # no triggers
    # of a target that no bridge serves: the stack's own mends what it finds stranded
    """INSERT INTO resource.project_agents (project_id, agent_id, profile_box_id, worker_target)
    SELECT $1, 'agent-' || n, md5($1 || 'profile')::uuid, 'nobody' FROM generate_series(1, $2::int) n""",
    # the past: $2 turns, the newest of which are live: one of three queued, the others in hand, of $3 in all
    """INSERT INTO state.agent_inbox (inbox_id, project_id, agent_id, message_type, correlation_id, agent_turn_id,
    turn_epoch, status, context_headers, payload, next_retry_at, created_at, archived_at, channel_id)
    SELECT $1 || '-i' || n, $1, 'agent-' || n, 'turn', $1 || '-t' || n, $1 || '-t' || n, n,
    CASE WHEN n > $3 THEN 'consumed' WHEN n % 3 = 0 THEN 'queued' ELSE 'consumed' END,
    jsonb_build_object('traceparent', '00-' || md5($1 || n) || '-0000000000000001-01'),
    jsonb_build_object('context_box_id', md5($1 || 'in' || n)::uuid, 'output_box_id', md5($1 || 'out' || n)::uuid,
                       'profile_box_id', md5($1 || 'profile')::uuid),
    CASE WHEN n <= $3 AND n % 3 = 0 THEN 'infinity' ELSE now() END, now() - make_interval(secs => n),
    CASE WHEN n <= $3 AND n % 3 = 0 THEN NULL ELSE now() END, 'public' FROM generate_series(1, $2::int) n""",
    """INSERT INTO state.turn_outcomes (agent_turn_id, project_id, agent_id, channel_id, turn_epoch, inbox_id, status,
    deliverable_card_id, output_box_id, announced_at, started_at, ended_at)
    SELECT $1 || '-t' || n, $1, 'agent-' || n, 'public', n, $1 || '-i' || n,
    CASE WHEN n % 50 = 0 THEN 'failed' ELSE 'success' END, $1 || '-c' || n, md5($1 || 'out' || n)::uuid, now(),
    now() - make_interval(secs => n), now() FROM generate_series($3::int + 1, $2::int) n""",
    """INSERT INTO state.agent_state_head (project_id, agent_id, status, active_agent_turn_id, active_inbox_id,
    active_channel_id, turn_epoch, profile_box_id, context_box_id, output_box_id, waiting_tool_count, resume_deadline,
    step_count, step_attempt, started_at, updated_at)
    SELECT $1, 'agent-' || n, CASE WHEN n % 3 = 0 THEN 'idle' WHEN n % 3 = 1 THEN 'running' ELSE 'suspended' END,
    CASE WHEN n % 3 > 0 THEN $1 || '-t' || n END, CASE WHEN n % 3 > 0 THEN $1 || '-i' || n END, 'public', n,
    md5($1 || 'profile')::uuid, CASE WHEN n % 3 > 0 THEN md5($1 || 'in' || n)::uuid END,
    CASE WHEN n % 3 > 0 THEN md5($1 || 'out' || n)::uuid END, CASE WHEN n % 3 = 2 THEN 1 ELSE 0 END,
    CASE WHEN n % 3 = 2 THEN now() + interval '1 hour' END, 1, 1, now(), now() FROM generate_series(1, $3::int) n""",
    """INSERT INTO state.turn_waiting_tools (project_id, agent_id, agent_turn_id, turn_epoch, step_id, tool_call_id,
    tool_name, wait_status) SELECT $1, 'agent-' || n, $1 || '-t' || n, n, $1 || '-t' || n || '-s1', $1 || '-k' || n,
    'search', 'waiting' FROM generate_series(2, $3::int, 3) n""",
    """INSERT INTO state.interrupts (interrupt_id, project_id, channel_id, agent_id, agent_turn_id, step_id,
    tool_call_id, tool_name, reason, message, allowed_decisions, wait_seconds, status, expires_at)
    SELECT $1 || '-q' || n, $1, 'public', 'agent-' || n, $1 || '-t' || n, $1 || '-t' || n || '-s1', $1 || '-k' || n,
    'search', 'tool_call', 'May it?', '{approve}', 60, 'open', now() + interval '1 day'
    FROM generate_series(2, $3::int, 30) n""",
    """INSERT INTO state.agent_steps (project_id, agent_id, step_id, agent_turn_id, status, metadata, started_at,
    ended_at) SELECT $1, 'agent-' || n, $1 || '-t' || n || '-s' || s, $1 || '-t' || n, 'completed',
    '{"next": "end", "timing": {"step_ms": 800}, "llm_response_cost": 0.001, "llm_usage": {"total_tokens": 900},
      "attempts": [{"attempt": 1, "model": "scripted/large", "duration_ms": 700, "usage": {"total_tokens": 900},
                    "usage_kind": "exact", "response_cost": 0.001}]}',
    now() - make_interval(secs => n), now() FROM generate_series(1, $2::int) n CROSS JOIN generate_series(1, 2) s""",
    """INSERT INTO public.boxes (box_id, tenant_id)
    SELECT md5($1 || 'in' || n)::uuid, $1 FROM generate_series(1, $2::int) n
    UNION ALL SELECT md5($1 || 'profile')::uuid, $1""",
    """INSERT INTO public.cards (card_id, tenant_id, content, metadata)
    SELECT $1 || '-in' || n, $1, jsonb_build_object('__type__', 'TextContent', 'text', 'Look at order ' || n),
    '{"type": "task.instruction", "role": "user"}'::jsonb FROM generate_series(1, $2::int) n
    UNION ALL SELECT $1 || '-profile', $1, '{"__type__": "JsonContent", "data": {"name": "helper",
    "llm_config": {"model": "scripted/large"}}}'::jsonb, '{"type": "sys.profile", "role": "system"}'::jsonb""",
    """INSERT INTO public.box_cards (box_id, position, card_id)
    SELECT md5($1 || 'in' || n)::uuid, 1, $1 || '-in' || n FROM generate_series(1, $2::int) n
    UNION ALL SELECT md5($1 || 'profile')::uuid, 1, $1 || '-profile'""",
    # the tree: the oldest turn has asked $4 others, which are the ended ones above the live
    """INSERT INTO state.turn_nodes (agent_turn_id, project_id, parent_turn_id, root_turn_id, waited, ended)
    SELECT $1 || '-t' || $2::int, $1, NULL, $1 || '-t' || $2::int, false, true
    UNION ALL SELECT $1 || '-t' || n, $1, $1 || '-t' || $2::int, $1 || '-t' || $2::int, true, true
    FROM generate_series($3::int + 1, $3::int + $4::int) n""",
    """INSERT INTO state.turn_waiting_tools (project_id, agent_id, agent_turn_id, turn_epoch, step_id, tool_call_id,
    tool_name, wait_status, applied_at) SELECT $1, 'agent-' || $2::int, $1 || '-t' || $2::int, 1,
    $1 || '-t' || $2::int || '-s1', $1 || '-fork', 'fork_join', 'applied', now()""",
    """INSERT INTO state.pmo_batches (batch_id, project_id, parent_agent_id, parent_agent_turn_id, parent_tool_call_id,
    parent_turn_epoch, task_count, status)
    SELECT $1 || '-batch', $1, 'agent-' || $2::int, $1 || '-t' || $2::int, $1 || '-fork', 1, $4::int, 'success'""",
    """INSERT INTO state.pmo_batch_tasks (batch_task_id, batch_id, project_id, agent_id, status, task_index,
    current_agent_turn_id) SELECT $1 || '-task' || n, $1 || '-batch', $1, 'agent-' || n, 'success', n, $1 || '-t' || n
    FROM generate_series($3::int + 1, $3::int + $4::int) n""",
)


async def fill(pool: Pool, project: ProjectId, *, turns: int, live: int, children: int) -> AgentTurnId:
    """Write `turns` turns, of which `live` go on; returns the root of a tree with so many `children`."""
    given = {"$1": f"'{project}'::text", "$2": str(turns), "$3": str(live), "$4": str(children)}
    async with pool.connection() as conn, conn.transaction():
        for statement in _FILL:
            for name, value in given.items():
                statement = statement.replace(name, value)  # noqa: PLW2901 -- the words of a test
            await conn.fetch(statement)
    return AgentTurnId(f"{project}-t{turns}")
