-- The rights of bridges, workers and gateways in the ledger, if they have roles of their own (docs/security.md). No
-- role may change a card, the contents of a box, a step or an edge. A bridge changes the roster, as operators request.
-- No role may delete rows, with two exceptions: a worker deletes those of workers and listeners that are gone, and of
-- queues that nobody uses, and a bridge deletes tools, webhooks, schedules, and files whose bytes are gone. A gateway
-- may only read.

-- name: find_roles :many
-- Which of these roles exist, and whether one owns the ledger.
SELECT wanted.role, EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.rolname = wanted.role) AS found,
       wanted.role = current_user AS is_owner
FROM unnest(:roles::text[]) AS wanted (role);

-- name: list_grants :many
-- The statements that grant the roles the rights below and revoke all others; null stands for no role. Locking a view's
-- rows needs the right to update some column: the column named here is computed, so that nothing can be updated.
WITH rights (relation, bridge, worker) AS (VALUES
    ('public.cards', 'SELECT, INSERT', 'SELECT, INSERT'),
    ('public.boxes',  -- UPDATE: to lock a row
     'SELECT, INSERT, UPDATE (updated_at, unused_of)', 'SELECT, INSERT, UPDATE (updated_at, unused_of)'),
    ('public.box_cards', 'SELECT, INSERT', 'SELECT, INSERT'),
    ('resource.profiles',
     'SELECT, INSERT, UPDATE (profile_box_id, name, worker_target, tags, system_prompt_compiled, settings, updated_at)',
     'SELECT'),
    -- an enqueue makes and wakes instances of profiles
    ('resource.project_agents',
     'SELECT, INSERT, UPDATE (profile_box_id, worker_target, tags, display_name, status, metadata)',
     'SELECT, INSERT, UPDATE (status)'),
    ('state.identity_edges', 'SELECT, INSERT', 'INSERT'),
    ('state.conversations',  -- a worker's compaction moves the pointer
     'SELECT, INSERT, UPDATE (agent_id, output_box_id, notes, turn_count, last_turn_id, updated_at)',
     'SELECT, INSERT, UPDATE (output_box_id, turn_count, last_turn_id, updated_at)'),
    ('resource.tools',
     'SELECT, INSERT, DELETE, UPDATE (description, parameters, target_subject, after_execution, options)', 'SELECT'),
    ('resource.schedules',
     'SELECT, INSERT, DELETE, UPDATE (owner, owner_operates, settings, timing, anchor_at, next_at, looked_at, revision,
          paused_at, paused_because, waker_turn_id, root_turn_id, wake, updated_at)', null),
    ('state.schedule_firings', 'SELECT, INSERT', null),  -- they go with their schedule
    ('resource.artifacts', 'SELECT, INSERT, DELETE, UPDATE (status, size, sha256, updated_at)', 'SELECT'),
    ('state.agent_state_head',
     'SELECT, INSERT, UPDATE (status, active_agent_turn_id, active_inbox_id, active_channel_id, turn_epoch,
          active_recursion_depth, updated_at, parent_step_id, trace_id, profile_box_id, context_box_id, output_box_id,
          expecting_correlation_id, waiting_tool_count, resume_deadline, restart_count, queue_seq, output_position,
          step_count, step_attempt, model_failures, started_at, paused_at_epoch, is_carried)',
     'SELECT, INSERT, UPDATE (status, active_agent_turn_id, active_inbox_id, active_channel_id, turn_epoch,
          active_recursion_depth, updated_at, parent_step_id, trace_id, profile_box_id, context_box_id, output_box_id,
          expecting_correlation_id, waiting_tool_count, resume_deadline, restart_count, queue_seq, output_position,
          step_count, step_attempt, model_failures, started_at, is_carried)'),
    ('state.agent_state_pointers',
     'SELECT, INSERT, UPDATE (memory_context_box_id, last_output_box_id, replaced_output_box_id, updated_at)',
     'SELECT, INSERT, UPDATE (last_output_box_id, updated_at)'),
    ('state.channel_pointers', 'SELECT, INSERT, UPDATE (memory_context_box_id, last_output_box_id, updated_at)',
     'SELECT, INSERT, UPDATE (last_output_box_id, updated_at)'),
    ('state.agent_inbox',
     'SELECT, INSERT, UPDATE (turn_epoch, status, retry_count, next_retry_at, last_error, defer_reason, processed_at,
          archived_at)',
     'SELECT, INSERT, UPDATE (turn_epoch, status, retry_count, next_retry_at, last_error, defer_reason, archived_at)'),
    ('state.queued_turns', 'SELECT, UPDATE (profile_box_id)', 'SELECT, UPDATE (profile_box_id)'),
    ('state.turns_in_hand', 'SELECT', null),
    ('state.turn_waiting_tools',
     'SELECT, UPDATE (wait_status, received_at, updated_at, held_by, deadline, call_card_id, begun_at, begun_by,
          doubted_at, left_seconds)',
     'SELECT, INSERT, UPDATE (wait_status, tool_result_card_id, received_at, applied_at, updated_at)'),
    ('state.steers', 'SELECT, INSERT, UPDATE (status, settled_at)', 'SELECT, UPDATE (status, due, settled_at)'),
    ('state.push_receivers',  -- a bridge notifies them
     'SELECT, INSERT, UPDATE (url, token, created_by, status, told_state, state, number, state_at, attempts, next_at,
          last_error)', null),
    ('state.webhooks',  -- triggers write the events
     'SELECT, INSERT, DELETE, UPDATE (profile_name, url, secret, events, status, created_by, updated_at)', null),
    ('state.webhook_events', 'SELECT, DELETE, UPDATE (status, attempts, next_at, last_error)', null),
    ('state.webhook_configs', 'SELECT', null),
    ('state.interrupts',  -- a worker asks; only a bridge decides
     'SELECT, INSERT, UPDATE (status, decision, decision_digest, decided_by, comment, tool_changed, edited_digest,
          decided_at, response)', 'SELECT, INSERT'),
    -- triggers and functions of the owner charge and settle; a bridge raises budgets and sets what projects may spend,
    -- which no worker may
    ('state.budgets',
     'SELECT, INSERT, UPDATE (max_tokens, max_cost, max_turns, reserved_tokens, reserved_cost, reserved_turns,
          warned_at, lowered_at, updated_at, updated_by)', null),
    ('state.budget_raises', 'SELECT, INSERT', null),
    ('state.project_budgets',  -- an enqueue looks there
     'SELECT, INSERT, UPDATE (max_tokens, max_cost, max_turns, updated_at, updated_by)', 'SELECT'),
    ('state.model_prices', 'SELECT',  -- of a profile whose cost is limited
     'SELECT, INSERT, UPDATE (input_per_million, output_per_million, cached_input_per_million, max_output_tokens,
          source, updated_at)'),
    ('state.model_queues', null,
     'SELECT, INSERT, DELETE, UPDATE (version, state, paused_until, waiting, updated_at)'),
    ('state.turn_nodes',  -- UPDATE: to lock a row; functions of the owner write
     'SELECT, UPDATE (ended)', 'SELECT, UPDATE (ended)'),
    ('state.call_steps', 'SELECT', null),  -- a function of the owner writes
    ('state.deletions', 'SELECT', null),  -- functions of the owner write
    ('state.pmo_batches', 'SELECT', 'SELECT'),
    ('state.pmo_batch_tasks', 'SELECT', null),
    ('state.agent_steps', 'SELECT, INSERT', 'SELECT, INSERT'),
    ('state.execution_edges', 'SELECT, INSERT', 'INSERT'),
    ('state.turn_outcomes', 'SELECT, INSERT, UPDATE (announced_at)', 'SELECT, INSERT, UPDATE (announced_at)'),
    ('state.threads',
     'SELECT, INSERT, UPDATE (status, end_reason, version, message_count, updated_at, ended_at)',
     'SELECT, UPDATE (status, end_reason, version, message_count, updated_at, ended_at)'),
    ('state.thread_segments', 'SELECT, INSERT', 'SELECT, INSERT, UPDATE (status, output_box_id, ended_at)'),
    ('state.thread_messages',
     'SELECT, INSERT',
     'SELECT, INSERT, UPDATE (segment_id, status, attempt, begun_by, agent_turn_id, deadline, ended_by, effect,
          begun_at, ended_at)'),
    ('state.thread_replies', 'SELECT, UPDATE (announced_at)', 'SELECT, INSERT, UPDATE (announced_at)'),
    ('state.workers', 'SELECT, INSERT, UPDATE (last_seen_at, left_at, protocol_level)',
     'SELECT, INSERT, DELETE, UPDATE (last_seen_at, left_at, started_at, listeners, payloads, protocol_level)'),
    ('state.listeners', 'SELECT',
     'SELECT, INSERT, DELETE, UPDATE (description, agent_id, is_agent, peers, root_tag, xsd, answers, declared_at)'),
    ('state.duties', 'SELECT, INSERT, UPDATE (taken_at)', null),
    ('state.repairs', 'SELECT, INSERT, UPDATE (repaired, last_at)', null),
    ('state.rejections', 'SELECT, INSERT', 'INSERT'),  -- SELECT: to reject once what is ahead of the ledger
    ('state.ledger_era', 'SELECT, UPDATE (compared_era)', 'SELECT'),  -- the owner's function writes the rest
    ('state.schema_files', 'SELECT', 'SELECT')
), readable (relation) AS (VALUES  -- by a gateway
    ('public.cards'), ('public.box_cards'), ('resource.profiles'), ('resource.project_agents'), ('resource.tools'),
    ('resource.artifacts'), ('state.artifact_refs'),
    ('state.agent_state_head'), ('state.execution_edges'), ('state.agent_inbox'), ('state.queued_turns'),
    ('state.turn_waiting_tools'), ('state.turn_nodes'), ('state.pmo_batches'), ('state.pmo_batch_tasks'),
    ('state.budgets'), ('state.project_budgets'), ('state.agent_steps'), ('state.turn_outcomes'),
    ('state.conversations'), ('state.interrupts'), ('state.steers'), ('state.push_configs'), ('state.webhook_configs'),
    ('state.gateway_tokens'), ('state.model_queues'), ('state.call_steps'),
    ('resource.schedules'), ('state.schedule_firings'),
    ('state.schema_files'), ('state.rejections'), ('state.repairs'), ('state.workers'), ('state.ledger_era'),
    -- what the audit reads besides
    ('public.boxes'), ('state.agent_state_pointers'), ('state.channel_pointers'), ('state.budget_reservations'),
    ('state.budget_raises'), ('state.identity_edges'), ('state.deletions'), ('state.deletion_items'),
    ('state.past_costs')
), roles AS (
    SELECT DISTINCT role FROM unnest(ARRAY[:bridge_role::text, :worker_role::text, :gateway_role::text]) AS named (role)
    WHERE role IS NOT NULL
), statements (place, statement) AS (
    SELECT 1, format('REVOKE ALL ON %s FROM %I', c.oid::regclass, roles.role)
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace CROSS JOIN roles
    WHERE n.nspname IN ('public', 'resource', 'state') AND c.relkind IN ('r', 'p', 'v', 'm', 'S')
      AND pg_get_userbyid(c.relowner) = current_user
    UNION ALL
    SELECT 2, format('GRANT USAGE ON SCHEMA %I TO %I', schema, roles.role)
    FROM unnest(ARRAY['resource', 'state']) AS named (schema) CROSS JOIN roles
    UNION ALL
    SELECT 3, format('GRANT %s ON %s TO %I', rights.bridge, rights.relation, :bridge_role)
    FROM rights WHERE rights.bridge IS NOT NULL AND :bridge_role IS NOT NULL
    UNION ALL
    SELECT 3, format('GRANT %s ON %s TO %I', rights.worker, rights.relation, :worker_role)
    FROM rights WHERE rights.worker IS NOT NULL AND :worker_role IS NOT NULL
    UNION ALL
    SELECT 3, format('GRANT SELECT ON %s TO %I', readable.relation, :gateway_role)
    FROM readable WHERE :gateway_role IS NOT NULL
)
SELECT statement FROM statements ORDER BY place, statement;
