-- The transitions of a leased turn (protocol §3, §7). Every statement has the CAS gate: agent, turn and epoch.
-- The next position in the output box is after both the head's count, which is current once the head is locked, and the
-- box's last card: a concurrent stop that took the box for free may have written a card there, which the second try
-- then sees.

-- name: begin_step :many
-- Begins a step: dispatched | running -> running; counts the attempt and consumes the turn's inbox row. Returns the
-- step's input in the order of §7.2: first a row 'head' (its JSON in content), then the cards of the profile, context
-- and output boxes (part 1, 2, 3) after the positions that the caller knows; from the beginning where a box is of
-- another version, since a card in it expired or was deleted, and the output box where it is not :output_box_id. The
-- context box is read as of the first step, which pins its last position. Then the steers that the step asks the model
-- with (part 4, §6 steer), which its first attempt takes, and puts into the output box; a later one finds them there,
-- too (part 3).
-- No rows: the gate is closed, by a mark (§6, join) too, or the step is not the next.
WITH
{mark_of_turn(true)},
head AS (
    UPDATE state.agent_state_head h SET
        status = 'running', updated_at = now(), step_attempt = h.step_attempt + 1,
        started_at = coalesce(h.started_at, now()),
        output_position = greatest(h.output_position, (SELECT max(b.position)
                                                       FROM public.box_cards b WHERE b.box_id = h.output_box_id))
    WHERE h.agent_id = :agent_id AND h.project_id = :project_id AND h.active_agent_turn_id = :agent_turn_id
      AND h.turn_epoch = :turn_epoch AND h.status IN ('dispatched', 'running')
      AND (:step::int = 0 OR h.step_count = :step::int - 1) AND {gate_of_mark(true)}
      AND EXISTS (SELECT FROM state.agent_inbox i
                  WHERE i.inbox_id = h.active_inbox_id AND i.agent_turn_id = :agent_turn_id
                  AND i.agent_id = :agent_id AND i.project_id = :project_id AND i.turn_epoch = :turn_epoch)
    RETURNING h.status, h.step_count, h.step_attempt, h.model_failures, h.output_position, h.trace_id,
              h.parent_step_id, h.updated_at,
              h.started_at, h.profile_box_id, h.context_box_id, h.output_box_id, h.active_inbox_id
),
inbox AS (
    UPDATE state.agent_inbox i SET status = 'consumed', archived_at = now()
    FROM head WHERE i.inbox_id = head.active_inbox_id AND {is_null(i.archived_at)}
),
pinned AS MATERIALIZED (
    SELECT s.metadata -> 'turn_config' AS turn_config FROM head
    JOIN state.agent_steps s ON s.step_id = :agent_turn_id || '-s1' AND s.project_id = :project_id
),
opened AS MATERIALIZED (
    SELECT x.part, x.box_id, v.version, x.upto, CASE v.version WHEN x.version THEN x.known ELSE 0 END AS known
    FROM head CROSS JOIN LATERAL (VALUES
        (1, head.profile_box_id, :known_profile::bigint, :profile_version::text, NULL::int),
        (2, head.context_box_id, :known_context::bigint, :context_version::text,
         (SELECT state.as_count(p.turn_config ->> 'context_position') FROM pinned p)),
        (3, head.output_box_id, CASE head.output_box_id WHEN :output_box_id::uuid THEN :known_output::bigint ELSE 0 END,
         :output_version::text, NULL)) x (part, box_id, known, version, upto)
    LEFT JOIN public.boxes b ON b.box_id = x.box_id
    CROSS JOIN LATERAL (SELECT coalesce(extract(epoch FROM b.updated_at)::text, '') AS version) v
),
steers AS MATERIALIZED (  -- a later attempt always asks, since its snapshot may be older than what the first one took
    SELECT s.* FROM head CROSS JOIN LATERAL state.take_steers_into_box(
        :agent_turn_id, :agent_turn_id || '-s' || (head.step_count + 1), head.step_attempt = 1, head.output_box_id) s
    WHERE head.step_attempt > 1 OR EXISTS (SELECT FROM state.steers w
                                           WHERE w.agent_turn_id = :agent_turn_id AND w.status = 'waiting')
)
SELECT 0 AS part, 0::bigint AS position, NULL AS card_id, jsonb_build_object(
           'message_type', i.message_type, 'status', head.status, 'step_count', head.step_count,
           'step_attempt', head.step_attempt,
           'model_failures', head.model_failures, 'output_position', head.output_position,
           'trace_id', head.trace_id, 'parent_step_id', head.parent_step_id,
           'updated_at', head.updated_at, 'started_at', head.started_at, 'enqueued_at', i.created_at,
           'context_headers', i.context_headers, 'runtime_config', coalesce(i.payload -> 'runtime_config', '{}'),
           'profile_box_id', head.profile_box_id, 'context_box_id', head.context_box_id,
           'output_box_id', head.output_box_id,
           'tools', CASE WHEN head.step_count = 0 THEN coalesce((
               SELECT jsonb_agg(to_jsonb(t) - 'project_id' ORDER BY t.tool_name) FROM resource.tools t
               WHERE t.project_id = :project_id), '[]') ELSE '[]' END,
           'due_at', i.next_retry_at,
           'suspended_at', CASE WHEN head.step_count > 0 THEN (
               SELECT s.ended_at FROM state.agent_steps s WHERE s.step_id = :agent_turn_id || '-s' || head.step_count
                 AND s.project_id = :project_id AND s.metadata ->> 'next' = 'suspend') END,
           'turn_config', (SELECT p.turn_config FROM pinned p), 'rerun', i.payload -> 'rerun',
           'budget', i.payload -> 'budget', 'guards', i.payload -> 'guards',
           'boxes', (SELECT jsonb_agg(jsonb_build_object('version', o.version, 'known', o.known, 'upto', o.upto)
                                      ORDER BY o.part)
                     FROM opened o),
           'answered', CASE WHEN head.step_count = 0 THEN '[]' ELSE coalesce((
               SELECT jsonb_agg(jsonb_build_object('tool_call_id', w.tool_call_id, 'tool_name', w.tool_name,
                   'tool_result_card_id', w.tool_result_card_id, 'after_execution', r.after_execution,
                   'reported_at', r.created_at))
               FROM state.turn_waiting_tools w LEFT JOIN LATERAL (
                   SELECT r.payload ->> 'after_execution' AS after_execution, r.created_at FROM state.agent_inbox r
                   WHERE r.correlation_id = w.tool_call_id AND r.project_id = :project_id
                     AND r.message_type = CASE w.wait_status WHEN 'expired' THEN 'timeout'
                                               ELSE 'tool_result' END {by_key}) r ON true
               WHERE w.agent_turn_id = :agent_turn_id AND w.project_id = :project_id
                 AND w.step_id = :agent_turn_id || '-s' || head.step_count
                 AND w.wait_status IN ('applied', 'expired')), '[]') END) AS content,
       NULL::jsonb AS tool_calls, NULL AS tool_call_id, NULL::jsonb AS metadata, NULL::timestamptz AS expires_at
FROM head JOIN state.agent_inbox i ON i.inbox_id = head.active_inbox_id
UNION ALL
SELECT o.part, c.position, c.card_id, c.content, c.tool_calls, c.tool_call_id, c.metadata, c.expires_at
FROM opened o CROSS JOIN LATERAL (
    SELECT b.position, c.* FROM public.box_cards b JOIN public.cards c ON c.card_id = b.card_id
    WHERE b.box_id = o.box_id AND b.position > o.known AND b.position <= coalesce(o.upto, b.position)
      AND state.is_alive(c.expires_at, c.deleted_at) {by_key}) c
UNION ALL
SELECT 4, s.seq, s.card_id, s.content, NULL, NULL, s.metadata, s.expires_at FROM steers s
ORDER BY 1, 2;

-- name: retry_step :opt
-- Counts a failed model call on the head, which bounds the attempts of a step (§7.9). No row: the gate is closed, by a
-- mark too.
WITH
{mark_of_turn(true)}
UPDATE state.agent_state_head h SET
    step_attempt = h.step_attempt + 1, model_failures = h.model_failures + 1, updated_at = now()
WHERE h.agent_id = :agent_id AND h.project_id = :project_id AND h.active_agent_turn_id = :agent_turn_id
  AND h.turn_epoch = :turn_epoch AND h.status = 'running' AND h.step_count = :step::int - 1
  AND {gate_of_mark(true)}
RETURNING h.step_attempt, h.model_failures;

-- name: commit_step :opt
-- variant: commit_plain_step, without holds, boxes, steers
-- Commits a step that does not end the turn: its row, its cards at the end of the output box, the head on the next
-- step. With calls (command_intent, §6): waiting rows, edges tool_call/request and the suspended head, before any
-- command is published; the head's deadline is the earliest of theirs. Calls with a hold are held by an interrupt each,
-- have no deadline, and wait_seconds is null if all are (§13). With :new_box_id it makes a box of its :output_box_id
-- (§7.3, compaction): its :leading_ids, the cards from :first_kept_id on with :carried_ids, then :within_ids, before
-- them and the steers that it took, and its other cards. The head, the conversation and the agent's pointer that name
-- the old box name the new one from then on; the old one stays as it was, and the step's row names it. The steers that
-- it asked with are applied: begin_step has put their cards into the box. A step that would have ended the turn but for
-- a steer (:steered) makes all that wait due. No row: the gate is closed, by a mark that forbids the calls too;
-- recorded_step says whether it was committed before.
WITH
{mark_of_turn(cardinality(:call_ids::text[]) > 0)},
-- only for boxes
kept AS MATERIALIZED (
    SELECT b.position, b.card_id FROM public.box_cards b
    WHERE :new_box_id::text IS NOT NULL AND b.box_id = :output_box_id::text::uuid
      AND (b.card_id = ANY (:carried_ids::text[] || :steer_ids::text[]) OR b.position >= (
        SELECT min(f.position) FROM public.box_cards f
        WHERE f.box_id = :output_box_id::text::uuid AND f.card_id = :first_kept_id::text))
),
-- end
head AS (
    UPDATE state.agent_state_head h SET
        updated_at = now(),
-- only for boxes
        output_box_id = coalesce(:new_box_id::text::uuid, h.output_box_id),
-- end
        output_position = cardinality(:card_ids::text[]) +
-- only for boxes
            CASE WHEN :new_box_id::text IS NOT NULL THEN (SELECT count(*) FROM kept) ELSE
-- end
            greatest(h.output_position, (SELECT max(b.position) FROM public.box_cards b
                                         WHERE b.box_id = h.output_box_id))
-- only for boxes
            END
-- end
            ,
        step_count = :step::int, step_attempt = 0, model_failures = 0,
        status = CASE cardinality(:call_ids::text[]) WHEN 0 THEN h.status ELSE 'suspended' END,
        waiting_tool_count = cardinality(:call_ids::text[]), expecting_correlation_id = NULL,
        resume_deadline = CASE cardinality(:call_ids::text[]) WHEN 0 THEN NULL
                          ELSE clock_timestamp() + make_interval(secs => :wait_seconds::float8) END
    WHERE h.agent_id = :agent_id AND h.project_id = :project_id AND h.active_agent_turn_id = :agent_turn_id
      AND h.turn_epoch = :turn_epoch AND h.status = 'running' AND h.step_count = :step::int - 1
      AND {gate_of_mark(cardinality(:call_ids::text[]) > 0)}
-- only for boxes
      AND (:new_box_id::text IS NULL OR h.output_box_id = :output_box_id::text::uuid)
-- end
    RETURNING h.status, h.updated_at, h.resume_deadline, h.active_inbox_id, h.active_channel_id,
              h.active_recursion_depth, h.parent_step_id,
              h.trace_id, h.profile_box_id, h.context_box_id, h.output_box_id,
              h.output_position - cardinality(:card_ids::text[]) AS base
),
step AS (
    INSERT INTO state.agent_steps (project_id, agent_id, step_id, agent_turn_id, channel_id,
                                   parent_step_id, trace_id, status,
                                   profile_box_id, context_box_id, output_box_id, tool_call_ids, metadata,
                                   started_at, ended_at)
    SELECT :project_id, :agent_id, :step_id, :agent_turn_id, head.active_channel_id, head.parent_step_id, head.trace_id,
-- only for boxes
           'completed', head.profile_box_id, head.context_box_id,
           CASE WHEN :new_box_id::text IS NULL THEN head.output_box_id
                                                                       ELSE :output_box_id::text::uuid END,
           :tool_call_ids::jsonb,
-- else
           'completed', head.profile_box_id, head.context_box_id, head.output_box_id, :tool_call_ids::jsonb,
-- end
           :step_metadata::jsonb, :step_started_at::timestamptz, clock_timestamp()
    FROM head
),
cards AS (
    INSERT INTO public.cards (card_id, tenant_id, content, tool_calls, tool_call_id, metadata)
    SELECT c.card_id, :project_id, c.content, c.tool_calls, c.tool_call_id,
           c.metadata || {lineage(head.parent_step_id)} FROM head
    CROSS JOIN unnest(:card_ids::text[], :card_contents::jsonb[], :card_tool_calls::jsonb[],
                      :card_tool_call_ids::text[],
                      :card_metadatas::jsonb[]) c (card_id, content, tool_calls, tool_call_id, metadata)
    WHERE c.card_id <> ALL (:kept_ids::text[])
),
boxed AS (
    INSERT INTO public.box_cards (box_id, position, card_id)
-- only for boxes
    SELECT head.output_box_id, row_number() OVER (
        ORDER BY x.part, x.place) + CASE WHEN :new_box_id::text IS NULL THEN head.base ELSE 0 END,
           x.card_id
    FROM head CROSS JOIN (
        SELECT CASE WHEN c.card_id = ANY (:leading_ids::text[]) THEN 1 WHEN w.card_id IS NULL THEN 3 ELSE 2 END AS part,
               CASE WHEN w.card_id IS NULL THEN c.ordinal ELSE (
                   SELECT k.position - 0.5 FROM kept k WHERE k.card_id = :first_kept_id::text) END AS place, c.card_id
        FROM unnest(:card_ids::text[]) WITH ORDINALITY c (card_id, ordinal)
        LEFT JOIN unnest(:within_ids::text[]) w (card_id) ON w.card_id = c.card_id
        UNION ALL
        SELECT 2, k.position, k.card_id FROM kept k) x
-- else
    SELECT head.output_box_id, head.base + c.ordinal, c.card_id FROM head
    CROSS JOIN unnest(:card_ids::text[]) WITH ORDINALITY c (card_id, ordinal)
-- end
),
-- only for steers
applied AS (
    UPDATE state.steers s SET status = 'applied', settled_at = clock_timestamp() FROM head
    WHERE s.steer_id = ANY (:steer_ids::text[]) AND s.agent_turn_id = :agent_turn_id AND s.status = 'taken'
),
made_due AS (
    UPDATE state.steers s SET due = true FROM head
    WHERE :steered::boolean AND s.agent_turn_id = :agent_turn_id AND s.status = 'waiting' AND NOT s.due
),
-- end
-- only for boxes
made_box AS (
    INSERT INTO public.boxes (box_id, tenant_id, parent_ids)
    SELECT head.output_box_id, :project_id, ARRAY[:output_box_id::text::uuid]
    FROM head WHERE :new_box_id::text IS NOT NULL
),
talk AS (
    UPDATE state.conversations c SET output_box_id = head.output_box_id, updated_at = now() FROM head
    WHERE :new_box_id::text IS NOT NULL AND c.output_box_id = :output_box_id::text::uuid AND c.project_id = :project_id
),
pointed AS (
    UPDATE state.agent_state_pointers p SET last_output_box_id = head.output_box_id, updated_at = now() FROM head
    WHERE :new_box_id::text IS NOT NULL AND p.agent_id = :agent_id AND p.project_id = :project_id
      AND p.last_output_box_id = :output_box_id::text::uuid
),
pointed_by_channel AS (
    UPDATE state.channel_pointers p SET last_output_box_id = head.output_box_id, updated_at = now() FROM head
    WHERE :new_box_id::text IS NOT NULL AND p.agent_id = :agent_id AND p.project_id = :project_id
      AND p.last_output_box_id = :output_box_id::text::uuid
),
-- end
waiting AS (
    INSERT INTO state.turn_waiting_tools (project_id, agent_id, agent_turn_id, turn_epoch, step_id,
                                          tool_call_id, tool_name, call_card_id,
                                          deadline, held_by)
    SELECT :project_id, :agent_id, :agent_turn_id, :turn_epoch, :step_id, c.id, c.name, c.card_id,
           CASE WHEN x.id IS NULL THEN head.resume_deadline + make_interval(
               secs => c.wait_seconds - :wait_seconds::float8) END, x.id FROM head
    CROSS JOIN unnest(:call_ids::text[], :call_names::text[], :call_card_ids::text[], :call_waits::float8[])
               c (id, name, card_id, wait_seconds)
    LEFT JOIN jsonb_to_recordset(:holds::jsonb) x (id text, tool_call_id text) ON x.tool_call_id = c.id
),
-- only for holds
questions AS (
    INSERT INTO state.interrupts (interrupt_id, project_id, channel_id, agent_id, agent_turn_id,
                                  step_id, tool_call_id, tool_name, reason,
                                  message, action_digest, allowed_decisions, response_schema, on_expiry, requester,
                                  requester_may_decide, only_requester,
                                  tool_pin, wait_seconds, expires_at)
    SELECT x.id, :project_id, coalesce(head.active_channel_id, 'public'), :agent_id, :agent_turn_id,
           :step_id, x.tool_call_id, x.tool_name,
           x.reason, x.message, x.action_digest, x.allowed_decisions, nullif(x.response_schema, 'null'),
           x.on_expiry, coalesce((
               SELECT r.context_headers ->> 'CG-Sender' FROM state.turn_nodes n
               JOIN state.agent_inbox r ON r.agent_turn_id = n.root_turn_id
               WHERE n.agent_turn_id = :agent_turn_id AND r.message_type IN {turn_types}
                 AND x.only_requester IS NOT TRUE LIMIT 1), (  -- what a client runs is this turn's own
               SELECT i.context_headers ->> 'CG-Sender' FROM state.agent_inbox i
               WHERE i.inbox_id = head.active_inbox_id)),
           x.requester_may_decide, coalesce(x.only_requester, false), nullif(x.tool_pin, 'null'), x.wait_seconds,
           now() + make_interval(secs => x.expires_after_seconds)
    FROM head CROSS JOIN jsonb_to_recordset(:holds::jsonb) x (
        id text, tool_call_id text, tool_name text, reason text, message text, action_digest text,
        allowed_decisions text[],
        response_schema jsonb, on_expiry text, requester_may_decide boolean, only_requester boolean, tool_pin jsonb,
        wait_seconds float8, expires_after_seconds float8)
),
-- end
edges AS (
    INSERT INTO state.execution_edges (edge_id, project_id, channel_id, primitive, edge_phase,
                                       source_agent_id, source_agent_turn_id,
                                       source_step_id, target_agent_id, target_agent_turn_id, correlation_id,
                                       recursion_depth, trace_id,
                                       parent_step_id, metadata)
    SELECT 'tool-call-' || c.id, :project_id, head.active_channel_id, 'tool_call', 'request', :agent_id,
           :agent_turn_id, :step_id,
           :agent_id, :agent_turn_id, c.id, head.active_recursion_depth, head.trace_id, :step_id,
           jsonb_build_object('tool_name', c.name)
    FROM head CROSS JOIN unnest(:call_ids::text[], :call_names::text[]) c (id, name)
    ON CONFLICT DO NOTHING
)
SELECT 'done' AS result, head.status, head.updated_at, coalesce(head.resume_deadline, (
           SELECT now() + make_interval(secs => min(x.expires_after_seconds))
           FROM jsonb_to_recordset(:holds::jsonb) x (expires_after_seconds float8))
       ) AS resume_deadline, :step_metadata::jsonb AS step_metadata FROM head;

-- name: lock_conversation :exec
-- Locks the conversation that goes on in a box, before a step locks the head to make another box of it.
SELECT FROM state.conversations c WHERE c.output_box_id = :output_box_id::uuid AND c.project_id = :project_id
FOR NO KEY UPDATE;

-- name: recorded_step :opt
-- What commit_step answers where it finds the gate closed: 'already', if the step was committed before, and the turn is
-- in hand.
SELECT 'already' AS result, h.status, h.updated_at,
       coalesce(h.resume_deadline, {asked_until(:agent_turn_id)}) AS resume_deadline, s.metadata AS step_metadata
FROM state.agent_steps s
JOIN state.agent_state_head h ON h.agent_id = :agent_id AND h.project_id = :project_id
    AND h.active_agent_turn_id = :agent_turn_id AND h.turn_epoch = :turn_epoch
WHERE s.step_id = :step_id AND s.project_id = :project_id;

-- name: finish_turn :opt
-- variant: finish_running_turn, without force, steers
-- The end of a turn, by its own step or by force: cards (the deliverable among them), canceled results for calls nobody
-- answered, step and outcome; the head is leased to the next free turn of its queue, or idle. Only a paused head idles
-- with a
-- queue: if an enqueue came between our snapshot and our lock and no next turn is in sight, nothing changes: 'again'.
-- So too if a step was committed or a stop requested meanwhile, whose rows we would not see: these set updated_at, and
-- an enqueue does not. A step that may be followed by another one (:yields) does not end a turn for which a steer
-- waits: 'steered', and nothing changes. A steer, too, sets updated_at. Every other end skips what waits, by a trigger.
-- result: done | again | steered. No row: the gate is closed; recorded_end says whether the turn has ended already.
WITH
steers AS MATERIALIZED (
    SELECT s.steer_id, s.status FROM state.steers s
    WHERE s.agent_turn_id = :agent_turn_id AND s.status IN ('waiting', 'taken')
      AND s.steer_id <> ALL (:steer_ids::text[])
),
head AS MATERIALIZED (
    SELECT h.agent_id, h.project_id, h.paused_at_epoch, h.step_count, h.updated_at, h.started_at,
           h.turn_epoch, h.active_inbox_id,
           h.active_channel_id, h.parent_step_id, h.trace_id, h.profile_box_id, h.context_box_id,
           h.output_box_id, h.output_position, h.xmin AS version
    FROM state.agent_state_head h
    WHERE h.agent_id = :agent_id AND h.project_id = :project_id AND h.active_agent_turn_id = :agent_turn_id
      AND h.turn_epoch = :turn_epoch AND h.status = ANY (:from_statuses::text[])
      AND (:step_id::text IS NULL OR h.step_count = :step::int - 1)
    FOR NO KEY UPDATE
),
next AS MATERIALIZED (
    SELECT q.inbox_id, q.agent_turn_id, q.channel_id, q.profile_box_id, q.context_box_id,
           {box_at_lease(q)} AS output_box_id, q.trace_id, q.parent_step_id, q.recursion_depth, q.context_headers
    FROM head CROSS JOIN LATERAL (
        SELECT q.* FROM state.queued_turns q
        WHERE q.agent_id = :agent_id AND q.project_id = :project_id
          AND NOT EXISTS (SELECT FROM state.agent_state_head busy
                          WHERE busy.output_box_id = q.output_box_id AND busy.output_box_id <> head.output_box_id)
        ORDER BY q.created_at LIMIT 1 FOR NO KEY UPDATE OF q) q
    WHERE head.paused_at_epoch IS NULL
),
go AS MATERIALIZED (
    SELECT head.step_count, head.started_at, head.turn_epoch, head.active_inbox_id,
           head.active_channel_id, head.parent_step_id,
           head.trace_id, head.profile_box_id, head.context_box_id, head.output_box_id, greatest(head.output_position, (
               SELECT max(b.position) FROM public.box_cards b WHERE b.box_id = head.output_box_id)) AS base
    FROM head JOIN state.agent_state_head seen ON seen.agent_id = head.agent_id AND seen.project_id = head.project_id
    WHERE (seen.xmin = head.version OR (EXISTS (SELECT FROM next)
                                        AND (seen.step_count, seen.updated_at) = (head.step_count, head.updated_at)))
      AND NOT (:yields::boolean AND EXISTS (SELECT FROM steers s WHERE s.status = 'waiting'))
),
-- only for force
dropped AS (
    UPDATE state.turn_waiting_tools w SET wait_status = 'dropped', updated_at = now()
    FROM go WHERE w.agent_turn_id = :agent_turn_id AND w.project_id = :project_id
      AND w.wait_status IN ('waiting', 'received')
    RETURNING w.tool_call_id, w.tool_name, w.step_id, w.created_at
),
-- end
new_cards AS MATERIALIZED (  -- the canceled results, then the given cards, whose last is the deliverable
-- only for force
    SELECT row_number() OVER (ORDER BY d.tool_call_id || '-canceled') AS ordinal,
           d.tool_call_id || '-canceled' AS card_id,
           {error_result('canceled', 'suspend', 'canceled', 'the turn ended before this call was answered')} AS content,
           NULL::jsonb AS tool_calls, d.tool_call_id,
           {result_metadata('system', d.tool_name, d.step_id, :agent_turn_id::text, go.trace_id,
               go.parent_step_id)} AS metadata
    FROM dropped d CROSS JOIN go
    UNION ALL
-- end
    SELECT
-- only for force
           (SELECT count(*) FROM dropped) +
-- end
           c.place AS ordinal, c.card_id, c.content, c.tool_calls, c.tool_call_id,
           c.metadata || {lineage(go.parent_step_id)} AS metadata FROM go
    CROSS JOIN unnest(:card_ids::text[], :card_contents::jsonb[], :card_tool_calls::jsonb[],
                      :card_tool_call_ids::text[],
                      :card_metadatas::jsonb[]) WITH ORDINALITY c (card_id, content, tool_calls,
                                                                   tool_call_id, metadata, place)
),
cards AS (
    INSERT INTO public.cards (card_id, tenant_id, content, tool_calls, tool_call_id, metadata)
    SELECT c.card_id, :project_id, c.content, c.tool_calls, c.tool_call_id, c.metadata FROM new_cards c
    WHERE c.card_id <> ALL (:kept_ids::text[])
),
boxed AS (
    INSERT INTO public.box_cards (box_id, position, card_id)
    SELECT go.output_box_id, go.base + c.ordinal, c.card_id FROM go CROSS JOIN new_cards c
),
-- only for steers
applied AS (
    UPDATE state.steers s SET status = 'applied', settled_at = clock_timestamp() FROM go
    WHERE s.steer_id = ANY (:steer_ids::text[]) AND s.agent_turn_id = :agent_turn_id AND s.status = 'taken'
),
-- end
step AS (
    INSERT INTO state.agent_steps (project_id, agent_id, step_id, agent_turn_id, channel_id,
                                   parent_step_id, trace_id, status,
                                   profile_box_id, context_box_id, output_box_id, tool_call_ids, error,
                                   metadata, started_at, ended_at)
    SELECT :project_id, :agent_id, :step_id::text, :agent_turn_id, go.active_channel_id, go.parent_step_id, go.trace_id,
           :step_status::text, go.profile_box_id, go.context_box_id, go.output_box_id,
           :tool_call_ids::jsonb, :error_code::text,
           :step_metadata::jsonb, :step_started_at::timestamptz, clock_timestamp()
    FROM go WHERE :step_id::text IS NOT NULL
),
outcome AS (
    INSERT INTO state.turn_outcomes (agent_turn_id, project_id, agent_id, channel_id, turn_epoch, inbox_id, status,
                                     deliverable_card_id, tool_result_card_id, output_box_id, error_code, error,
                                     stats, trace_id, started_at)
    SELECT :agent_turn_id, :project_id, :agent_id, go.active_channel_id, :turn_epoch, go.active_inbox_id, :status::text,
           :deliverable_card_id::text, :tool_result_card_id::text, go.output_box_id, :error_code::text, :error::text,
           jsonb_build_object('steps', go.step_count) || :stats::jsonb
               || state.turn_timing(i.created_at, go.started_at) || {rolled_back(i)},
           go.trace_id, go.started_at
    FROM go LEFT JOIN state.agent_inbox i ON i.inbox_id = go.active_inbox_id
    RETURNING status, deliverable_card_id, tool_result_card_id, output_box_id, error_code, error,
              stats, ended_at, inbox_id
),
-- only for force
settled AS (  -- the turn's own row, if it was never begun
    UPDATE state.agent_inbox i SET status = 'skipped', archived_at = now(), last_error = :error_code::text
    FROM go WHERE i.inbox_id = go.active_inbox_id AND {is_null(i.archived_at)}
    RETURNING i.inbox_id, i.status, i.last_error
),
-- end
stopped AS (  -- the requests to stop this turn
    UPDATE state.agent_inbox i SET
        status = CASE :error_code::text WHEN 'stopped' THEN 'consumed' ELSE 'skipped' END, archived_at = now(),
        last_error = CASE :error_code::text WHEN 'stopped' THEN NULL ELSE 'already_final' END
    FROM go WHERE i.correlation_id IN (:agent_turn_id, 'cascade-' || :agent_turn_id) AND i.project_id = :project_id
      AND i.message_type = 'stop' AND {is_null(i.archived_at)}
    RETURNING i.inbox_id, i.status, i.last_error
),
moved AS (
    UPDATE state.agent_inbox i SET status = 'pending', next_retry_at = now(), turn_epoch = go.turn_epoch + 1
    FROM go CROSS JOIN next WHERE i.inbox_id = next.inbox_id
),
freed AS (
    UPDATE state.agent_state_head h SET
        status = CASE WHEN n.inbox_id IS NULL THEN 'idle' ELSE 'dispatched' END,
        turn_epoch = h.turn_epoch + CASE WHEN n.inbox_id IS NULL THEN :idle_bump::int ELSE 1 END,
        {turn_on_head}
    FROM go LEFT JOIN next n ON true WHERE h.agent_id = :agent_id AND h.project_id = :project_id
    RETURNING h.status, h.turn_epoch, h.updated_at, n.inbox_id, n.agent_turn_id, n.channel_id,
              n.context_headers, n.output_box_id
),
left_box AS MATERIALIZED (
    -- the one that the turn wrote; of one that was rolled back the one in which its conversation goes on
    SELECT go.active_channel_id AS channel_id, coalesce(CASE WHEN outcome.stats ? 'rolled_back_by' THEN (
               SELECT state.conversation_box(i.project_id, i.agent_id, i.channel_id, i.payload ->> 'conversation_id')
               FROM state.agent_inbox i WHERE i.inbox_id = go.active_inbox_id) END, go.output_box_id) AS box_id
    FROM go CROSS JOIN outcome
),
pointed AS (
    INSERT INTO state.agent_state_pointers AS p (project_id, agent_id, last_output_box_id)
    SELECT :project_id, :agent_id, l.box_id FROM left_box l
    ON CONFLICT (agent_id, project_id) DO UPDATE SET last_output_box_id = EXCLUDED.last_output_box_id,
                                                     updated_at = now()
),
pointed_by_channel AS (
    INSERT INTO state.channel_pointers AS p (project_id, channel_id, agent_id, last_output_box_id)
    SELECT :project_id, l.channel_id, :agent_id, l.box_id FROM left_box l
    ON CONFLICT (agent_id, channel_id, project_id) DO UPDATE SET last_output_box_id = EXCLUDED.last_output_box_id,
                                                                 updated_at = now()
)
SELECT CASE WHEN o.status IS NOT NULL THEN 'done'
            WHEN :yields::boolean AND EXISTS (SELECT FROM steers s WHERE s.status = 'waiting') THEN 'steered'
            ELSE 'again' END AS result,
       o.status, o.deliverable_card_id, o.tool_result_card_id, o.output_box_id::text AS output_box_id, o.error_code,
       o.error, o.stats, o.ended_at, NULL::jsonb AS step_metadata, f.status AS head_status,
       f.turn_epoch AS head_epoch, f.updated_at,
       f.inbox_id AS next_inbox_id, f.agent_turn_id AS next_turn_id, f.channel_id AS next_channel_id,
       f.output_box_id::text AS next_output_box_id, f.context_headers AS next_context_headers, i.context_headers,
       i.payload -> 'ui_action' AS ui_action,
       (SELECT a.worker_target FROM resource.project_agents a
        WHERE a.agent_id = :agent_id AND a.project_id = :project_id) AS worker_target,
       coalesce((SELECT jsonb_agg(jsonb_build_object('inbox_id', s.inbox_id, 'status', s.status,
                                                     'reason', s.last_error))
                 FROM (
-- only for force
                     TABLE settled UNION ALL
-- end
                     TABLE stopped) s), '[]') AS rows,
       EXISTS (SELECT FROM state.turn_nodes m WHERE m.agent_turn_id = :agent_turn_id) AS in_tree,
       ARRAY(SELECT s.steer_id FROM steers s ORDER BY s.steer_id) AS skipped_steers
FROM head LEFT JOIN outcome o ON true LEFT JOIN freed f ON true
LEFT JOIN state.agent_inbox i ON i.inbox_id = o.inbox_id;

-- name: recorded_end :opt
-- What finish_turn answers where it finds the gate closed: 'already', if the outcome is there, by this step or, without
-- a step, by anybody.
SELECT 'already' AS result, o.status, o.deliverable_card_id, o.tool_result_card_id,
       o.output_box_id::text AS output_box_id, o.error_code,
       o.error, o.stats, o.ended_at, s.metadata AS step_metadata, h.status AS head_status,
       h.turn_epoch AS head_epoch, h.updated_at,
       CASE h.status WHEN 'dispatched' THEN h.active_inbox_id END AS next_inbox_id,
       CASE h.status WHEN 'dispatched' THEN h.active_agent_turn_id END AS next_turn_id,
       CASE h.status WHEN 'dispatched' THEN h.active_channel_id END AS next_channel_id,
       CASE h.status WHEN 'dispatched' THEN h.output_box_id::text END AS next_output_box_id,
       (SELECT n.context_headers FROM state.agent_inbox n
        WHERE h.status = 'dispatched' AND n.inbox_id = h.active_inbox_id) AS next_context_headers,
       i.context_headers, i.payload -> 'ui_action' AS ui_action,
       (SELECT a.worker_target FROM resource.project_agents a
        WHERE a.agent_id = :agent_id AND a.project_id = :project_id) AS worker_target,
       '[]'::jsonb AS rows, false AS in_tree,
       ARRAY(SELECT s.steer_id FROM state.steers s WHERE s.agent_turn_id = :agent_turn_id AND s.status = 'skipped'
             ORDER BY s.seq) AS skipped_steers
FROM state.turn_outcomes o JOIN state.agent_state_head h ON h.agent_id = :agent_id AND h.project_id = :project_id
LEFT JOIN state.agent_steps s ON s.step_id = :step_id::text AND s.project_id = :project_id
LEFT JOIN state.agent_inbox i ON i.inbox_id = o.inbox_id
WHERE o.agent_turn_id = :agent_turn_id AND o.agent_id = :agent_id AND o.project_id = :project_id
  AND (:step_id::text IS NULL OR s.step_id IS NOT NULL);

-- name: recall_step :one
-- The recorded state of a turn whose gate is closed: the step (the latest for step 0), the outcome, and the head's
-- state.
SELECT s.metadata AS step_metadata, s.number AS step, o.status, o.deliverable_card_id, o.tool_result_card_id,
       o.output_box_id::text AS output_box_id, o.error_code, o.error, o.stats, o.ended_at, h.status AS head_status,
       h.turn_epoch AS head_epoch, h.updated_at,
       coalesce(h.active_agent_turn_id = :agent_turn_id AND h.turn_epoch = :turn_epoch, false) AS gate,
       coalesce(h.resume_deadline, {asked_until(:agent_turn_id)}) AS resume_deadline,
       EXISTS (SELECT FROM state.turn_nodes m
               WHERE m.agent_turn_id = :agent_turn_id AND m.stopping_at IS NOT NULL AND NOT m.ended) AS stopping,
       CASE h.status WHEN 'dispatched' THEN h.active_inbox_id END AS next_inbox_id,
       CASE h.status WHEN 'dispatched' THEN h.active_agent_turn_id END AS next_turn_id,
       CASE h.status WHEN 'dispatched' THEN h.active_channel_id END AS next_channel_id,
       CASE h.status WHEN 'dispatched' THEN h.output_box_id::text END AS next_output_box_id, a.worker_target,
       ARRAY(SELECT w.tool_call_id FROM state.turn_waiting_tools w
             WHERE w.agent_turn_id = :agent_turn_id AND w.project_id = :project_id
             AND w.wait_status IN ('waiting', 'received') ORDER BY w.created_at, w.tool_call_id) AS waiting,
       i.context_headers, i.payload -> 'ui_action' AS ui_action, n.context_headers AS next_context_headers
FROM (SELECT) AS always
LEFT JOIN state.agent_state_head h ON h.agent_id = :agent_id AND h.project_id = :project_id
LEFT JOIN resource.project_agents a ON a.agent_id = :agent_id AND a.project_id = :project_id
LEFT JOIN LATERAL (
    SELECT t.metadata, state.as_count(substring(t.step_id FROM '-s([0-9]+)$')) AS number FROM state.agent_steps t
    WHERE t.agent_turn_id = :agent_turn_id AND t.project_id = :project_id
      AND (:step::int = 0 OR t.step_id = :agent_turn_id || '-s' || :step::int)
    ORDER BY 2 DESC LIMIT 1) s ON true
LEFT JOIN state.turn_outcomes o ON o.agent_turn_id = :agent_turn_id AND o.project_id = :project_id
LEFT JOIN state.agent_inbox i ON i.inbox_id = :inbox_id AND i.project_id = :project_id
LEFT JOIN state.agent_inbox n ON h.status = 'dispatched' AND n.inbox_id = h.active_inbox_id;

-- name: mark_announced :exec
-- Marks these turns as announced: their task events are in the event stream. A mark that is lost is made again, after
-- the same message (rule unannounced).
UPDATE state.turn_outcomes o SET announced_at = now()
WHERE {commits_lazily} AND o.agent_turn_id = ANY (:agent_turn_ids::text[]) AND {is_null(o.announced_at)};
