-- Pieces of SQL that several statements share. `{name(…)}` in a query file stands for the piece, with each argument in
-- its place.

-- fragment: next_epoch(last)
-- The epoch of a lease of an agent whose last one this is: higher, and above the floor of the era (protocol §16).
coalesce(greatest({last}, (SELECT e.epoch_floor FROM state.ledger_era e WHERE e.is_only)), 0) + 1

-- fragment: box_at_lease(turn)
-- The output box of a lease of a queued turn: of one in a conversation the conversation's, as its pointer is now.
coalesce(CASE WHEN {turn}.conversation_id IS NOT NULL THEN state.conversation_box(
    {turn}.project_id, {turn}.agent_id, {turn}.channel_id, {turn}.conversation_id) END, {turn}.output_box_id)

-- fragment: wanted_box(turn)
-- The output box that an inbox row of a turn names; of one in a conversation that waits for its lease, the
-- conversation's as of now.
coalesce(state.as_uuid({turn}.payload ->> 'output_box_id'), (
    SELECT v.output_box_id FROM state.conversations v
    WHERE v.agent_id = {turn}.agent_id AND v.conversation_id = {turn}.payload ->> 'conversation_id'
      AND v.channel_id = {turn}.channel_id
      AND v.project_id = {turn}.project_id))

-- fragment: full_of_boxes(cards)
-- The code of the limit that a caller, who makes a box of so many cards, has reached; null: none.
CASE WHEN state.is_full('boxes', :project_id, :maker::text, :most_boxes::int) THEN 'boxes_full'
     WHEN state.is_full('cards', :project_id, :maker::text, :most_cards::int, {cards}) THEN 'cards_full' END

-- fragment: turn_on_head
-- What a lease sets on the head `h`, which it takes of the queued turn `n`, and begins to count anew.
updated_at = now(),
active_agent_turn_id = n.agent_turn_id, active_inbox_id = n.inbox_id, active_channel_id = n.channel_id,
active_recursion_depth = coalesce(n.recursion_depth, 0), parent_step_id = n.parent_step_id, trace_id = n.trace_id,
profile_box_id = n.profile_box_id, context_box_id = n.context_box_id, output_box_id = n.output_box_id,
waiting_tool_count = 0, resume_deadline = NULL, expecting_correlation_id = NULL, restart_count = 0,
output_position = 0, step_count = 0, step_attempt = 0, model_failures = 0, started_at = NULL, is_carried = false

-- fragment: given_back(reason, delay_seconds)
-- What a claim that is given back sets on its row `i`: why, and how often running for that reason. It is due after the
-- delay, which doubles with each try, to four times its length.
status = 'deferred', defer_reason = {reason},
retry_count = CASE i.defer_reason WHEN {reason} THEN i.retry_count ELSE 0 END + 1,
next_retry_at = now() + make_interval(secs => {delay_seconds} * power(2, least(
    CASE i.defer_reason WHEN {reason} THEN i.retry_count ELSE 0 END, 2)))

-- fragment: error_result(status, after_execution, code, message)
-- The content of the result that the kernel writes for a call that no tool answered.
jsonb_build_object('__type__', 'ToolResultContent', 'status', {status},
                   'after_execution', {after_execution}, 'result', NULL,
    'error', jsonb_build_object('code', {code}, 'message', {message}))

-- fragment: lineage(parent_step_id)
-- What the metadata of a turn's cards says of the step on whose behalf the turn runs; nothing for a root.
CASE WHEN {parent_step_id} IS NULL THEN '{}'::jsonb ELSE jsonb_build_object('parent_step_id', {parent_step_id}) END

-- fragment: result_metadata(author_id, tool_name, step_id, agent_turn_id, trace_id, parent_step_id)
-- The metadata of a result card that SQL makes.
jsonb_build_object('type', 'tool.result', 'role', 'tool', 'author_id', {author_id}, 'function_name', {tool_name},
    'step_id', {step_id}, 'agent_turn_id', {agent_turn_id}, 'trace_id', {trace_id})
    || CASE WHEN {parent_step_id} IS NULL THEN '{}'::jsonb
            ELSE jsonb_build_object('parent_step_id', {parent_step_id}) END

-- fragment: mark_of_turn(wanted)
-- The CTE of a gate that reads the mark of a turn in a tree: the head is locked first, then the node FOR SHARE, so that
-- a cascade that has not committed is waited for, and waits for this gate. Of a turn in no tree it costs one look by
-- key, and locks nothing.
known AS MATERIALIZED (
    SELECT n.agent_turn_id FROM state.turn_nodes n
    WHERE n.agent_turn_id = :agent_turn_id AND n.project_id = :project_id AND {wanted}
),
held AS MATERIALIZED (
    SELECT h.agent_id FROM known JOIN state.agent_state_head h ON h.agent_id = :agent_id AND h.project_id = :project_id
    FOR NO KEY UPDATE OF h
),
mark AS MATERIALIZED (
    SELECT n.stopping_at FROM held JOIN state.turn_nodes n ON n.agent_turn_id = :agent_turn_id FOR SHARE OF n
)

-- fragment: gate_of_mark(wanted)
-- Whether that mark lets the turn through, as a condition on the head that the gate updates. Of a turn that had no node
-- the function is asked, which sees the newest: also after a wait for the lock of a head that has changed, as the mark
-- of such a turn changes it.
(NOT {wanted} OR NOT EXISTS (SELECT FROM mark WHERE mark.stopping_at IS NOT NULL)
     AND (EXISTS (SELECT FROM mark) OR NOT state.is_marked(h.active_agent_turn_id)))

-- fragment: asked_until(agent_turn_id)
-- When the first open question about a turn's calls expires: until then a turn that waits for people alone need not
-- look what is due.
(SELECT min(q.expires_at) FROM state.interrupts q
 WHERE q.agent_turn_id = {agent_turn_id} AND q.status = 'open' AND q.expires_at > now())

-- fragment: interrupt_columns
-- A question `t`, whose call waits as `w`, as people see it.
t.interrupt_id, t.channel_id, t.agent_id, t.agent_turn_id, t.step_id, t.tool_call_id, t.tool_name,
coalesce(w.call_card_id, t.tool_call_id || '-call') AS tool_call_card_id, t.reason, t.message, t.action_digest,
t.allowed_decisions, t.response_schema, t.requester_may_decide, t.requester, t.status, t.created_at,
t.expires_at, t.decision, t.decided_by, t.decided_at, t.comment, t.call_key IS NOT NULL AS asked_by_tool

-- fragment: waiting_call
-- The call of a question `t`.
LEFT JOIN LATERAL (
    SELECT x.call_card_id FROM state.turn_waiting_tools x
    WHERE x.tool_call_id = t.tool_call_id AND x.project_id = t.project_id LIMIT 1) w ON true

-- fragment: question_of_call(call)
-- The open question that a call, a waiting row, is held by, or else the newest one that its tool asks.
(SELECT q.interrupt_id FROM state.interrupts q
 WHERE ({call}.held_by IS NOT NULL OR {call}.left_seconds IS NOT NULL) AND q.agent_turn_id = {call}.agent_turn_id
   AND q.tool_call_id = {call}.tool_call_id AND q.status = 'open' ORDER BY q.created_at DESC, q.interrupt_id LIMIT 1)

-- fragment: interrupts_of_page
-- Whether a question `t` is one of those that a page shows, by what is given: without a reason, all that people answer.
CASE WHEN :reason::text IS NULL THEN t.reason <> 'client_tool' ELSE :reason IN (t.reason, 'any') END AND
(:channel_id::text IS NULL OR t.channel_id = :channel_id) AND (:agent_id::text IS NULL OR t.agent_id = :agent_id)
AND (:after_id::text IS NULL OR (t.created_at, t.interrupt_id) < (
    SELECT b.created_at, b.interrupt_id FROM state.interrupts b
    WHERE b.interrupt_id = :after_id AND b.project_id = :project_id
      AND (:channel_id::text IS NULL OR b.channel_id = :channel_id)))

-- fragment: attempt_of_call
-- What a model used for a step of a call, a row `c` of state.call_steps (protocol §21), as attempts of steps have it.
jsonb_build_object('model', c.model, 'usage_kind', 'exact', 'response_cost', c.cost / 1000000.0, 'usage',
    jsonb_build_object('total_tokens', c.tokens, 'completion_tokens', c.written, 'prompt_tokens', c.tokens - c.written))

-- fragment: recorded_under(call)
-- What a program recorded under a call (protocol §21): how many steps, the models' use, and the first hundred.
(SELECT jsonb_build_object('count', count(*), 'tokens', sum(c.tokens), 'cost', (sum(c.cost) / 1000000.0)::float8,
     'steps', jsonb_agg(jsonb_build_object('key', c.key, 'created_at', c.created_at, 'bytes', c.bytes, 'model', c.model,
         'tokens', c.tokens, 'cost', (c.cost / 1000000.0)::float8) ORDER BY c.seq) FILTER (WHERE c.seq <= 100))
 FROM state.call_steps c WHERE c.tool_call_id = {call}.tool_call_id AND c.project_id = {call}.project_id
 HAVING count(*) > 0)

-- fragment: use_of_turn(turn)
-- What the attempts of a turn's committed steps used, those of its calls' steps too, and the model of the last one.
(SELECT count(DISTINCT a.step_id) AS steps, coalesce(sum(state.as_count(a.attempt -> 'usage' ->> 'total_tokens')),
                                                     0)::bigint AS tokens,
        sum(CASE jsonb_typeof(a.attempt -> 'response_cost')
                 WHEN 'number' THEN (a.attempt ->> 'response_cost')::numeric END)::float8 AS cost,
        (array_agg(a.attempt ->> 'model' ORDER BY a.started_at DESC, a.place DESC)
            FILTER (WHERE a.attempt IS NOT NULL))[1] AS model
 FROM (SELECT s.step_id, s.started_at, l.attempt, l.place
       FROM state.agent_steps s LEFT JOIN LATERAL jsonb_array_elements(
           CASE jsonb_typeof(s.metadata -> 'attempts') WHEN 'array' THEN s.metadata -> 'attempts'
                ELSE '[]' END) WITH ORDINALITY l (attempt, place) ON true
       WHERE s.agent_turn_id = {turn} AND s.project_id = :project_id
       UNION ALL SELECT c.step_id, c.created_at, {attempt_of_call}, c.seq FROM state.call_steps c
       WHERE c.agent_turn_id = {turn} AND c.project_id = :project_id AND c.model IS NOT NULL) a)

-- fragment: profile_in_box(box)
-- The name and model of the profile that a box has.
(SELECT c.content #>> '{data,name}' AS name, c.content #>> '{data,llm_config,model}' AS model
 FROM public.box_cards b JOIN public.cards c ON c.card_id = b.card_id AND c.tenant_id = :project_id
 WHERE b.box_id = {box} AND c.metadata ->> 'type' = 'sys.profile' ORDER BY b.position DESC LIMIT 1)

-- fragment: is_unserved(agent)
-- Whether no worker that serves an agent's target has signed on lately.
NOT EXISTS (
    SELECT FROM resource.project_agents g JOIN state.workers v ON v.worker_target = g.worker_target
    WHERE g.agent_id = {agent} AND g.project_id = :project_id
      AND v.last_seen_at > now() - make_interval(secs => :silent_seconds::float8))

-- fragment: batches_of_call(turn, call)
-- The turns that a call of a turn asked, those of them that are over, and the turn itself where it is one.
(SELECT sum(t.task_count)::int AS tasks, sum(t.task_count - t.open_count)::int AS tasks_done,
        CASE WHEN sum(t.task_count) = 1 THEN min((
        SELECT e.current_agent_turn_id FROM state.pmo_batch_tasks e
        WHERE e.batch_id = t.batch_id LIMIT 1)) END AS only_turn_id
 FROM state.pmo_batches t WHERE t.parent_agent_turn_id = {turn} AND t.parent_tool_call_id = {call})

-- fragment: instruction_of(turn)
-- The last instruction that a turn, an inbox row, was asked with; null if its card is gone.
(SELECT coalesce(c.content ->> 'text', c.content ->> 'data') FROM public.box_cards p
 JOIN public.cards c ON c.card_id = p.card_id
 WHERE p.box_id = state.as_uuid({turn}.payload ->> 'context_box_id') AND c.tenant_id = {turn}.project_id
   AND c.metadata ->> 'type' = 'task.instruction' AND state.is_alive(c.expires_at, c.deleted_at)
 ORDER BY p.position DESC LIMIT 1)

-- fragment: turn_status
-- Where the turn of an inbox row `i` stands, by its outcome `o` and its agent's head `h`.
CASE WHEN o.agent_turn_id IS NOT NULL THEN o.status WHEN i.status = 'queued' THEN 'queued'
     WHEN h.active_agent_turn_id = i.agent_turn_id THEN h.status ELSE 'unknown' END

-- fragment: asked_of(turn)
-- The begin of what a turn, an inbox row, was asked; of a UI action the tool.
left(coalesce({turn}.payload -> 'ui_action' ->> 'tool_name', {instruction_of({turn})}), 300)

-- fragment: of_conversation
-- Whether a turn, an inbox row `i`, is one of a conversation, in whichever box it writes.
i.agent_id = :agent_id AND i.payload ->> 'conversation_id' = :conversation_id AND i.channel_id = :channel_id
AND i.project_id = :project_id AND i.message_type IN {turn_types}

-- fragment: rolled_back(turn)
-- What the outcome says of a turn, an inbox row, that was rolled back (protocol §6, enqueue): which turn took its
-- place.
CASE WHEN {turn}.payload ? 'rolled_back_by'
          THEN jsonb_build_object('rolled_back_by', {turn}.payload ->> 'rolled_back_by') ELSE '{}' END

-- fragment: request_of(turn)
-- The inbox row of a turn, looked up by the turn alone: a plan made for few rows would also read the indexes of all
-- turns' boxes.
(SELECT y.* FROM (SELECT x.* FROM state.agent_inbox x WHERE x.agent_turn_id = {turn} {by_key}) y
 WHERE y.project_id = :project_id AND y.message_type IN {turn_types})

-- fragment: task_columns
-- A turn, an inbox row `i`, as a task of A2A, with what it delivered if that is wanted.
i.agent_turn_id, i.agent_id, i.channel_id, nullif(i.payload ->> 'conversation_id', '') AS conversation_id,
i.correlation_id, i.created_at, {turn_status} AS status, coalesce(o.started_at, h.started_at) AS started_at, o.ended_at,
o.error_code, left(o.error, 2000) AS error,
o.agent_turn_id IS NULL AND EXISTS (SELECT FROM state.interrupts q
                                    WHERE q.agent_turn_id = i.agent_turn_id AND q.status = 'open'
                                      AND q.reason <> 'client_tool') AS asks,
d.content::text AS delivered, coalesce(d.metadata ->> 'partial' = 'true', false) AS partial

-- fragment: task_joins
-- The outcome, the head and the deliverable of a turn, an inbox row `i`.
LEFT JOIN state.turn_outcomes o ON o.agent_turn_id = i.agent_turn_id AND o.project_id = i.project_id
LEFT JOIN state.agent_state_head h ON h.agent_id = i.agent_id AND h.project_id = i.project_id
    AND h.active_agent_turn_id = i.agent_turn_id
LEFT JOIN public.cards d ON :with_artifacts::boolean AND d.card_id = o.deliverable_card_id
    AND d.tenant_id = i.project_id
    AND state.is_alive(d.expires_at, d.deleted_at)

-- fragment: task_of_target
-- Whether a turn, an inbox row `i`, is one of the agent, or of an instance of the profile, that is asked for, in the
-- channel if there is one.
(:channel_id::text IS NULL OR i.channel_id = :channel_id) AND (:agent_id::text IS NULL OR i.agent_id = :agent_id)
AND {task_of_profile}

-- fragment: task_of_profile
-- Whether a turn is one of an instance of the profile, if one is asked for.
(:profile_name::text IS NULL OR EXISTS (
    SELECT FROM resource.project_agents a WHERE a.agent_id = i.agent_id AND a.project_id = i.project_id
      AND a.metadata ->> 'instance_of' = lower(:profile_name)))

-- fragment: told_state(turn)
-- The state of a turn, an inbox row, as receivers of notifications get it; each question to a person is a state of
-- its own.
(SELECT CASE WHEN o.agent_turn_id IS NOT NULL THEN CASE o.status WHEN 'success' THEN 'completed'
                                                        WHEN 'canceled' THEN 'canceled' ELSE 'failed' END
             WHEN q.interrupt_id IS NOT NULL THEN 'input_required:' || q.interrupt_id
             WHEN h.status IN ('running', 'suspended') THEN 'working' ELSE 'submitted' END
 FROM (SELECT) one
 LEFT JOIN state.turn_outcomes o ON o.agent_turn_id = {turn}.agent_turn_id AND o.project_id = {turn}.project_id
 LEFT JOIN state.agent_state_head h ON h.agent_id = {turn}.agent_id
     AND h.project_id = {turn}.project_id AND h.active_agent_turn_id = {turn}.agent_turn_id
 LEFT JOIN LATERAL (
     SELECT x.interrupt_id FROM state.interrupts x
     WHERE x.agent_turn_id = {turn}.agent_turn_id AND x.status = 'open' AND x.reason <> 'client_tool'
     ORDER BY x.created_at DESC, x.interrupt_id DESC LIMIT 1) q ON true)

-- fragment: of_turns_since(rows, turn)
-- The rows of a table that an audit checks: all; or of turns since :since_id, and of the older ones that are on heads.
-- Its index by turn finds them, so that a window costs nothing for the rows of other turns.
(SELECT x.* FROM {rows} x WHERE :since_id::text IS NULL OR x.{turn} >= :since_id
 UNION ALL
 SELECT x.* FROM state.agent_state_head h JOIN {rows} x ON x.{turn} = h.active_agent_turn_id
 WHERE h.status <> 'idle' AND h.active_agent_turn_id < :since_id)

-- fragment: reservations_since
-- The budget reservations that an audit checks: all; or those of turns that were in hand since :since, which are over
-- since then or on a head.
(SELECT x.* FROM state.budget_reservations x WHERE :since::timestamptz IS NULL
 UNION ALL
 SELECT x.* FROM (
     SELECT o.agent_turn_id FROM state.turn_outcomes o WHERE o.ended_at >= :since
     UNION
     SELECT h.active_agent_turn_id FROM state.agent_state_head h WHERE h.status <> 'idle') t
 CROSS JOIN LATERAL (SELECT r.* FROM state.budget_reservations r WHERE r.agent_turn_id = t.agent_turn_id {by_key}) x
 WHERE :since IS NOT NULL AND EXISTS (SELECT FROM state.budget_reservations))

-- fragment: compactions_since
-- The steps that compacted a memory, with what they say of it, that an audit checks: all; or those of turns since
-- :since_id, and of the older ones that are on heads.
(SELECT x.*, state.as_uuid(x.metadata #>> '{compaction,output_box_id}') AS made_box_id,
        state.as_count(x.metadata ->> 'output_position') AS read_position
 FROM {of_turns_since(state.agent_steps, agent_turn_id)} x
 WHERE x.metadata ? 'compaction' AND (:project_id::text IS NULL OR x.project_id = :project_id))

-- fragment: cut_within_turn(card, turn)
-- Whether a cut within this turn leaves such a card out: what its steps said, called, got and summed up.
(coalesce({card}.metadata ->> 'agent_turn_id' = {turn}, false) AND {card}.metadata ->> 'type' IN (
    'agent.thought', 'tool.call', 'tool.result', 'task.deliverable', 'sys.must_end_with_required',
    'memory.turn_summary'))

-- fragment: box_of_turn(turn, number)
-- The box, as text, in which a turn, an inbox row, went on before the step of this number, or after all of its steps
-- where that is null: the one that its latest compaction made, else the one that it was leased with.
coalesce((
    SELECT y.metadata #>> '{compaction,output_box_id}' FROM state.agent_steps y
    WHERE y.agent_turn_id = {turn}.agent_turn_id AND y.project_id = {turn}.project_id AND y.metadata ? 'compaction'
      AND ({number} IS NULL OR state.as_count(substring(y.step_id FROM '-s([0-9]+)$')) < {number})
    ORDER BY state.as_count(substring(y.step_id FROM '-s([0-9]+)$')) DESC LIMIT 1), {turn}.payload ->> 'output_box_id')

-- fragment: commits_lazily
-- True; and the transaction's commit does not wait for the disk. For statements of a transaction of their own whose
-- loss, by a crash of the server, is mended like that of an answer: others see the row at once, and whatever is
-- committed durably after it keeps it, too.
(SELECT set_config('synchronous_commit', 'off', true)) = 'off'

-- fragment: is_null(column)
-- Whether a column is null, in words that no index's predicate has: for statements that know the key of a row. In plans
-- that were made while the tables were empty, the index of all that is live, or not announced, cost as much as the key,
-- and each begin and end read all of it.
({column} IS NULL) IS NOT FALSE

-- fragment: by_key
-- The end of a subquery that looks up a few rows by their key for each outer row. OFFSET 0 keeps the planner from
-- joining both tables as a whole, as a plan does that was made while they were empty, or for large batches
-- (docs/decisions/0006-plans-that-stay-right.md).
OFFSET 0

-- fragment: once
-- The end of a subquery whose expressions are evaluated once for each outer row: without OFFSET 0 the planner copies
-- them to each place that names them.
OFFSET 0

-- fragment: enqueued(made)
-- What `enqueue_turn` answers.
{made}.verdict, {made}.status AS inbox_status, {made}.conversation_id, {made}.worker_target, {made}.leased_at,
{made}.is_stranded, {made}.queued_because, ({made}.turn).settings -> 'budget' AS budget, ({made}.turn).correlation_id,
({made}.turn).created_at, ({made}.turn).agent_id, ({made}.turn).agent_turn_id, ({made}.turn).inbox_id,
({made}.turn).turn_epoch, ({made}.turn).claimed, ({made}.turn).headers AS context_headers,
split_part(({made}.turn).headers ->> 'traceparent', '-', 2) AS trace_id,
({made}.turn).profile_box_id::text AS profile_box_id, ({made}.turn).context_box_id::text AS context_box_id,
({made}.turn).output_box_id::text AS output_box_id
