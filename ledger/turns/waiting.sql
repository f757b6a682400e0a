-- Calls that wait for results: reports, timeouts, and their application (protocol §6 report, §7.5, §7.6).
-- Lock order: head, waiting rows, inbox rows. A waiting row is joined by its call and by the project of the row that
-- names it: with the project as a constant, a plan made while the table was empty would look rows up by project.

-- name: report_call :one
-- Records a report of a call: inbox row, waiting row 'received', edge report/response, and the card of an inline
-- result.
-- verdict: accepted | duplicate (returns the first report's ids, writes nothing) | again | the code of a refusal.
WITH
call AS MATERIALIZED (
    SELECT w.*, e.recursion_depth, e.trace_id, e.channel_id, e.parent_step_id, i.context_headers,
           a.worker_target, EXISTS (  -- a person is asked whether it was done, and who ran it knows
               SELECT FROM state.interrupts q WHERE q.interrupt_id = w.held_by
                 AND q.reason = 'confirmation') AS in_doubt
    FROM state.turn_waiting_tools w
    LEFT JOIN state.execution_edges e ON md5(e.correlation_id) = md5(w.tool_call_id) AND e.project_id = w.project_id
        AND e.primitive = 'tool_call' AND e.edge_phase = 'request'
    LEFT JOIN state.agent_inbox i ON i.agent_turn_id = w.agent_turn_id AND i.project_id = w.project_id
        AND i.message_type IN {turn_types}
    LEFT JOIN resource.project_agents a ON a.agent_id = w.agent_id AND a.project_id = w.project_id
    WHERE w.tool_call_id = :tool_call_id AND w.project_id = :project_id
),
earlier AS MATERIALIZED (
    SELECT i.inbox_id FROM state.agent_inbox i
    WHERE i.correlation_id = :tool_call_id AND i.project_id = :project_id AND i.message_type = 'tool_result'
),
card AS MATERIALIZED (
    SELECT c.* FROM public.cards c WHERE c.card_id = :tool_result_card_id::text AND c.tenant_id = :project_id
      AND state.is_alive(c.expires_at, c.deleted_at)
),
plan AS MATERIALIZED (
    SELECT CASE
        WHEN call.tool_call_id IS NULL THEN 'unknown_call'
        WHEN call.agent_turn_id IS DISTINCT FROM coalesce(:claimed_turn_id::text, call.agent_turn_id)
          OR call.agent_id IS DISTINCT FROM coalesce(:claimed_agent_id::text, call.agent_id)
          OR call.recursion_depth IS DISTINCT FROM coalesce(:claimed_depth::int, call.recursion_depth)
             THEN 'not_your_call'
        WHEN earlier.inbox_id IS NOT NULL THEN 'duplicate'
        WHEN call.held_by IS NOT NULL AND NOT call.in_doubt AND call.wait_status = 'waiting' THEN 'not_sent'
        WHEN :content::jsonb IS NOT NULL THEN 'accepted'
        WHEN card.card_id IS NULL THEN 'unknown_card'
        WHEN card.metadata ->> 'type' IS DISTINCT FROM 'tool.result'
             OR card.tool_call_id IS DISTINCT FROM call.tool_call_id
          OR NOT state.is_service(card.metadata ->> 'author_id') THEN 'not_its_card'
        ELSE 'accepted' END AS verdict
    FROM (SELECT) AS always LEFT JOIN call ON true LEFT JOIN earlier ON true LEFT JOIN card ON true
),
held AS MATERIALIZED (  -- locked before the inbox row and the edge are written, which a timeout of the call writes too
    SELECT w.tool_call_id FROM plan CROSS JOIN call JOIN state.turn_waiting_tools w ON plan.verdict = 'accepted'
    WHERE w.tool_call_id = :tool_call_id AND w.project_id = :project_id
      AND (w.held_by IS NULL OR w.wait_status <> 'waiting' OR (call.in_doubt AND w.held_by = call.held_by))
    FOR NO KEY UPDATE OF w
),
inbox AS (
    INSERT INTO state.agent_inbox (inbox_id, project_id, agent_id, channel_id, message_type,
                                   enqueue_mode, correlation_id, agent_turn_id,
                                   turn_epoch, context_headers, payload, status, next_retry_at, created_at)
    SELECT :inbox_id, :project_id, call.agent_id,
           coalesce(call.channel_id, 'public'), 'tool_result', 'report', :tool_call_id,
           call.agent_turn_id, call.turn_epoch,
           :context_headers::jsonb || jsonb_build_object('CG-Recursion-Depth', coalesce(call.recursion_depth, 0)::text),
           jsonb_build_object('status', :status::text, 'after_execution', :after_execution::text, 'tool_result_card_id',
                              coalesce(:tool_result_card_id::text, call.tool_call_id || '-result')),
           'pending', now(), clock_timestamp()
    FROM held CROSS JOIN call
    ON CONFLICT DO NOTHING
    RETURNING inbox_id
),
received AS (  -- only if the inbox row was inserted: a received call never expires
    UPDATE state.turn_waiting_tools w SET wait_status = 'received', received_at = now(),
                                          updated_at = now(), held_by = NULL
    FROM inbox WHERE w.tool_call_id = :tool_call_id AND w.project_id = :project_id AND w.wait_status = 'waiting'
),
asked AS (  -- nobody needs to know any more
    UPDATE state.interrupts q SET status = 'withdrawn', decided_at = clock_timestamp()
    FROM inbox CROSS JOIN call WHERE q.interrupt_id = call.held_by AND call.in_doubt AND q.status = 'open'
),
made AS (
    INSERT INTO public.cards (card_id, tenant_id, content, tool_call_id, metadata)
    SELECT call.tool_call_id || '-result', :project_id, jsonb_build_object(
               'after_execution', state.after_execution_of(:project_id, call.tool_name)) || :content::jsonb,
           call.tool_call_id,
           {result_metadata('tool.' || call.tool_name, call.tool_name, call.step_id, call.agent_turn_id, call.trace_id,
               call.context_headers ->> 'CG-Parent-Step-Id')} || state.artifacts_of(:content::jsonb)
    FROM inbox CROSS JOIN call WHERE :content::jsonb IS NOT NULL
),
edge AS (
    INSERT INTO state.execution_edges (edge_id, project_id, channel_id, primitive, edge_phase,
                                       target_agent_id, target_agent_turn_id,
                                       correlation_id, recursion_depth, trace_id, parent_step_id, metadata)
    SELECT 'report-' || call.tool_call_id, :project_id, call.channel_id, 'report', 'response',
           call.agent_id, call.agent_turn_id,
           :tool_call_id, call.recursion_depth, call.trace_id, call.step_id, jsonb_build_object('status', :status::text)
    FROM inbox CROSS JOIN call
    ON CONFLICT DO NOTHING
)
SELECT CASE WHEN plan.verdict <> 'accepted' THEN plan.verdict WHEN inbox.inbox_id IS NULL THEN 'again'
            ELSE 'accepted' END AS verdict,
       coalesce(inbox.inbox_id, earlier.inbox_id) AS inbox_id, call.agent_id, call.agent_turn_id,
       call.turn_epoch, call.wait_status,
       coalesce(call.channel_id, 'public') AS channel_id, call.worker_target, call.context_headers
FROM plan LEFT JOIN call ON true LEFT JOIN inbox ON true LEFT JOIN earlier ON true;

-- name: apply_reports :opt
-- Applies reports while the head is suspended: each waiting row has one winner, whose card enters the output box; the
-- other rows are settled. A card that is not visible yet defers its row; the last retry writes a failed result instead.
-- A card of another kind or call, or by an agent, breaks the protocol: its row ends as error, a rejection says whose it
-- was and why, and the call still waits. result: done | again (the snapshot was old). No row: the gate is closed.
WITH
head AS MATERIALIZED (
    SELECT h.* FROM state.agent_state_head h
    WHERE h.agent_id = :agent_id AND h.project_id = :project_id AND h.active_agent_turn_id = :agent_turn_id
      AND h.turn_epoch = :turn_epoch AND h.status IN ('running', 'suspended')
    FOR NO KEY UPDATE
),
go AS MATERIALIZED (
    SELECT head.*, greatest(head.output_position, (
               SELECT max(b.position) FROM public.box_cards b WHERE b.box_id = head.output_box_id)) AS base
    FROM head JOIN state.agent_state_head seen ON seen.agent_id = head.agent_id AND seen.project_id = head.project_id
    WHERE (seen.status, seen.turn_epoch, seen.output_position, seen.waiting_tool_count)
        = (head.status, head.turn_epoch, head.output_position, head.waiting_tool_count)
),
calls AS MATERIALIZED (  -- the turn's calls that still wait, locked before any inbox row
    SELECT w.tool_call_id, w.tool_name, w.step_id,
           CASE WHEN w.wait_status = 'waiting' AND w.held_by IS NULL
                     THEN coalesce(w.deadline, go.resume_deadline) END AS deadline FROM go
    JOIN state.turn_waiting_tools w ON w.agent_turn_id = :agent_turn_id
        AND w.project_id = :project_id AND w.turn_epoch = :turn_epoch
    WHERE go.status = 'suspended' AND w.wait_status IN ('waiting', 'received')
    ORDER BY w.tool_call_id FOR NO KEY UPDATE OF w
),
due AS MATERIALIZED (
    SELECT i.inbox_id, i.project_id, i.message_type, i.correlation_id, i.created_at, i.agent_turn_id, i.turn_epoch,
           CASE i.defer_reason WHEN 'card_not_visible' THEN i.retry_count ELSE 0 END AS tries,
           i.payload ->> 'tool_result_card_id' AS card_id
    FROM go JOIN state.agent_inbox i ON i.inbox_id = ANY (:inbox_ids::text[])
    WHERE i.agent_id = :agent_id AND i.project_id = :project_id AND i.archived_at IS NULL
      AND i.message_type IN {report_types} AND (i.status <> 'deferred' OR i.next_retry_at <= now())
      AND (SELECT count(*) FROM calls) >= 0
    FOR NO KEY UPDATE OF i
),
judged AS MATERIALIZED (
    SELECT due.*, calls.tool_name, calls.step_id, CASE
               WHEN due.agent_turn_id IS DISTINCT FROM :agent_turn_id OR due.turn_epoch IS DISTINCT FROM :turn_epoch
                    THEN 'stale'
               WHEN calls.tool_call_id IS NULL THEN 'settled'
               WHEN c.card_id IS NULL AND due.tries >= 3 THEN 'exhausted'
               WHEN c.card_id IS NULL THEN 'deferred'
               WHEN flaw.told IS NOT NULL THEN 'violation'
               ELSE 'good' END AS verdict, flaw.told AS flaw,
           coalesce(left(c.metadata ->> 'author_id', 128), 'nobody') AS author
    FROM due LEFT JOIN calls ON calls.tool_call_id = due.correlation_id
    LEFT JOIN public.cards c
        ON c.card_id = due.card_id AND c.tenant_id = :project_id AND state.is_alive(c.expires_at, c.deleted_at)
    CROSS JOIN LATERAL (SELECT CASE
        WHEN c.metadata ->> 'type' IS DISTINCT FROM 'tool.result' THEN 'its card is no tool.result'
        WHEN c.tool_call_id IS DISTINCT FROM calls.tool_call_id THEN 'its card is for another call'
        WHEN NOT state.is_service(c.metadata ->> 'author_id')
             THEN 'its card is by no tool.… or sys.… and not by the system' END) flaw (told)
),
refused AS (
    INSERT INTO state.rejections (project_id, source, error_code, error, ids)
    SELECT :project_id, 'sql:' || j.author, 'not_its_card', 'report: ' || j.flaw, jsonb_build_object(
               'tool_call_id', j.correlation_id, 'tool_result_card_id', j.card_id, 'inbox_id', j.inbox_id)
    FROM judged j WHERE j.verdict = 'violation'
),
winner AS MATERIALIZED (  -- a result and a timeout of one call: the earlier row wins
    SELECT DISTINCT ON (j.correlation_id) j.inbox_id, j.project_id, j.message_type, j.correlation_id,
           j.created_at, j.tool_name,
           j.step_id, j.verdict, CASE j.verdict WHEN 'exhausted' THEN j.correlation_id || '-exhausted'
                                      ELSE j.card_id END AS card_id
    FROM judged j WHERE j.verdict IN ('good', 'exhausted') ORDER BY j.correlation_id, j.created_at, j.inbox_id
),
placed AS MATERIALIZED (
    SELECT w.*, row_number() OVER (ORDER BY w.created_at, w.inbox_id) AS ordinal,
           count(*) OVER () AS total FROM winner w
),
stand_in AS (
    INSERT INTO public.cards (card_id, tenant_id, content, tool_call_id, metadata)
    SELECT p.card_id, :project_id,
           {error_result('failed', state.after_execution_of(:project_id, p.tool_name), 'resume_retry_exhausted',
               'the tool reported a result that never appeared')},
           p.correlation_id,
           {result_metadata('system', p.tool_name, p.step_id, :agent_turn_id::text, go.trace_id, go.parent_step_id)}
    FROM placed p CROSS JOIN go WHERE p.verdict = 'exhausted'
),
boxed AS (
    INSERT INTO public.box_cards (box_id, position, card_id)
    SELECT go.output_box_id, go.base + p.ordinal, p.card_id FROM go CROSS JOIN placed p
),
applied AS (
    UPDATE state.turn_waiting_tools w SET
        wait_status = CASE p.message_type WHEN 'timeout' THEN 'expired' ELSE 'applied' END,
        tool_result_card_id = p.card_id,
        received_at = coalesce(w.received_at, p.created_at), applied_at = now(), updated_at = now()
    FROM placed p WHERE w.tool_call_id = p.correlation_id AND w.project_id = p.project_id
),
moved AS (
    UPDATE state.agent_state_head h SET
        output_position = (SELECT go.base FROM go) + n.total, waiting_tool_count = n.left_over, updated_at = now(),
        status = CASE n.left_over WHEN 0 THEN 'running' ELSE 'suspended' END,
        resume_deadline = n.deadline
    FROM (SELECT (SELECT count(*) FROM placed) AS total, count(*) AS left_over,
                 min(c.deadline) AS deadline
          FROM calls c WHERE c.tool_call_id NOT IN (SELECT p.correlation_id FROM placed p)) n
    WHERE h.agent_id = :agent_id AND h.project_id = :project_id
      AND EXISTS (SELECT FROM go WHERE go.status = 'suspended')
    RETURNING h.status, h.waiting_tool_count, h.resume_deadline, h.updated_at
),
settled AS (
    UPDATE state.agent_inbox i SET
        status = CASE WHEN j.verdict = 'deferred' THEN 'deferred' WHEN j.verdict = 'stale' THEN 'skipped'
                      WHEN j.verdict IN ('violation', 'exhausted') THEN 'error' ELSE 'consumed' END,
        archived_at = CASE j.verdict WHEN 'deferred' THEN NULL ELSE now() END,
        retry_count = CASE j.verdict WHEN 'deferred' THEN j.tries + 1 ELSE i.retry_count END,
        next_retry_at = CASE j.verdict WHEN 'deferred' THEN now() + interval '1.5 s' * power(2, j.tries)
                             ELSE i.next_retry_at END,
        defer_reason = CASE j.verdict WHEN 'deferred' THEN 'card_not_visible' ELSE i.defer_reason END,
        last_error = CASE j.verdict WHEN 'violation' THEN 'protocol_violation'
                          WHEN 'exhausted' THEN 'resume_retry_exhausted'
                                    WHEN 'stale' THEN 'stale_turn' WHEN 'deferred' THEN 'card_not_visible'
                                    WHEN 'settled' THEN 'already_settled'
                                    ELSE CASE WHEN p.inbox_id IS NULL THEN 'already_settled' END END
    FROM judged j LEFT JOIN placed p ON p.inbox_id = j.inbox_id WHERE i.inbox_id = j.inbox_id
    RETURNING i.inbox_id, i.status, i.last_error, i.correlation_id, j.author,
              CASE j.verdict WHEN 'violation' THEN j.flaw END AS flaw
)
SELECT 'done' AS result, coalesce(m.status, go.status) AS status,
       CASE m.status WHEN 'suspended' THEN coalesce(m.resume_deadline, {asked_until(:agent_turn_id)}) END AS deadline,
       coalesce(m.updated_at, go.updated_at) AS updated_at,
       ARRAY(SELECT c.tool_call_id FROM calls c
             WHERE c.tool_call_id NOT IN (SELECT p.correlation_id FROM placed p)) AS waiting,
       ARRAY(SELECT c.tool_name FROM calls c
             WHERE c.tool_call_id NOT IN (SELECT p.correlation_id FROM placed p)) AS waiting_tools,
       (SELECT count(*) FROM placed) AS applied,
       (SELECT i.context_headers FROM state.agent_inbox i WHERE i.inbox_id = go.active_inbox_id) AS context_headers,
       coalesce((SELECT jsonb_agg(jsonb_build_object(
           'inbox_id', s.inbox_id, 'status', s.status, 'reason', s.last_error, 'call', s.correlation_id,
           'author', s.author, 'flaw', s.flaw))
           FROM settled s), '[]') AS rows
FROM go LEFT JOIN moved m ON true
UNION ALL
SELECT 'again', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL FROM head WHERE NOT EXISTS (SELECT FROM go);

-- name: inject_timeouts :many
-- A timeout card and inbox row for each call that waits unreported past its own deadline, which is its turn's if it has
-- none; null is never past. The head's deadline is then the earliest that is ahead. The workflow's timer and the
-- watchdog use this one
-- statement: a second run finds the first one's rows and returns them, with all others that are due. A call that is
-- held, or whose tool asks a person, is never late. If the head changed between our snapshot and our lock, we would not
-- see the calls or rows of that change: nothing changes, and a row of nulls says 'again'.
WITH
head AS MATERIALIZED (
    SELECT h.*, h.xmin AS version FROM state.agent_state_head h
    WHERE h.agent_id = :agent_id AND h.project_id = :project_id AND h.active_agent_turn_id = :agent_turn_id
      AND h.turn_epoch = :turn_epoch AND h.status = 'suspended'
    FOR NO KEY UPDATE
),
go AS MATERIALIZED (
    SELECT head.* FROM head JOIN state.agent_state_head seen ON seen.agent_id = head.agent_id
        AND seen.project_id = head.project_id
    WHERE seen.xmin = head.version
),
calls AS MATERIALIZED (
    SELECT w.*, CASE WHEN w.held_by IS NULL THEN coalesce(w.deadline, go.resume_deadline) END AS due_at FROM go
    JOIN state.turn_waiting_tools w ON w.agent_turn_id = :agent_turn_id AND w.project_id = :project_id
    WHERE w.turn_epoch = :turn_epoch AND w.wait_status = 'waiting' ORDER BY w.tool_call_id FOR NO KEY UPDATE OF w
),
late AS MATERIALIZED (SELECT c.* FROM calls c WHERE c.due_at <= now() AND c.left_seconds IS NULL),
dropped AS (  -- calls without a card, which no tool can answer: they leave the count
    UPDATE state.turn_waiting_tools w SET wait_status = 'dropped', updated_at = now()
    FROM late WHERE w.tool_call_id = late.tool_call_id AND w.project_id = late.project_id
      -- of an edit that
      AND NOT EXISTS (SELECT FROM public.cards c WHERE c.card_id IN (late.call_card_id, late.tool_call_id || '-call')
                        -- committed while we waited for the head only the first card is in sight
                        AND c.tenant_id = :project_id)
    RETURNING w.tool_call_id
),
expired AS MATERIALIZED (SELECT late.* FROM late WHERE late.tool_call_id NOT IN (SELECT d.tool_call_id FROM dropped d)),
inbox AS (
    INSERT INTO state.agent_inbox (inbox_id, project_id, agent_id, channel_id, message_type,
                                   enqueue_mode, correlation_id, agent_turn_id,
                                   turn_epoch, context_headers, payload, status, next_retry_at, created_at)
    SELECT 'timeout-' || x.tool_call_id, :project_id, :agent_id, go.active_channel_id, 'timeout',
           'report', x.tool_call_id,
           :agent_turn_id, :turn_epoch, jsonb_build_object('CG-Recursion-Depth', go.active_recursion_depth::text,
               'traceparent', (SELECT i.context_headers ->> 'traceparent' FROM state.agent_inbox i
                               WHERE i.inbox_id = go.active_inbox_id)),
           jsonb_build_object('status', 'timeout', 'after_execution', NULL,
                              'tool_result_card_id', x.tool_call_id || '-timeout'),
           'pending', now(), clock_timestamp()
    FROM expired x CROSS JOIN go
    ON CONFLICT DO NOTHING
    RETURNING inbox_id, correlation_id
),
cards AS (
    INSERT INTO public.cards (card_id, tenant_id, content, tool_call_id, metadata)
    SELECT x.tool_call_id || '-timeout', :project_id,
           {error_result('timeout', state.after_execution_of(:project_id, x.tool_name), 'tool_timeout',
               'the tool did not answer in time')},
           x.tool_call_id,
           {result_metadata('system', x.tool_name, x.step_id, :agent_turn_id::text, go.trace_id, go.parent_step_id)}
    FROM inbox JOIN expired x ON x.tool_call_id = inbox.correlation_id CROSS JOIN go
    ON CONFLICT DO NOTHING
),
edges AS (
    INSERT INTO state.execution_edges (edge_id, project_id, channel_id, primitive, edge_phase,
                                       target_agent_id, target_agent_turn_id,
                                       correlation_id, recursion_depth, trace_id, parent_step_id, metadata)
    SELECT 'report-' || x.tool_call_id, :project_id, go.active_channel_id, 'report', 'response',
           :agent_id, :agent_turn_id,
           x.tool_call_id, go.active_recursion_depth, go.trace_id, x.step_id, '{"status": "timeout"}'
    FROM inbox JOIN expired x ON x.tool_call_id = inbox.correlation_id CROSS JOIN go
    ON CONFLICT DO NOTHING
),
cleared AS (  -- the turn runs if no call is left; a repeat that changes nothing leaves updated_at
    UPDATE state.agent_state_head h SET resume_deadline = ahead.deadline, updated_at = now(),
           waiting_tool_count = h.waiting_tool_count - (SELECT count(*) FROM dropped),
           status = CASE (SELECT count(*) FROM dropped) WHEN h.waiting_tool_count THEN 'running' ELSE h.status END
    FROM go CROSS JOIN (SELECT min(c.due_at) AS deadline FROM calls c WHERE c.due_at > now()) ahead
    WHERE h.agent_id = :agent_id AND h.project_id = :project_id
      AND (h.resume_deadline <= now() OR EXISTS (SELECT FROM dropped) OR EXISTS (SELECT FROM inbox))
)
SELECT i.inbox_id, 'timeout' AS message_type, i.correlation_id FROM inbox i
UNION
SELECT i.inbox_id, i.message_type, i.correlation_id FROM go
JOIN state.turn_waiting_tools w ON w.agent_turn_id = :agent_turn_id AND w.project_id = :project_id
JOIN state.agent_inbox i ON i.correlation_id = w.tool_call_id AND i.project_id = :project_id
    AND i.message_type IN {report_types}
WHERE w.wait_status IN ('waiting', 'received') AND {is_null(i.archived_at)}
  AND (i.status <> 'deferred' OR i.next_retry_at <= now())
UNION ALL
SELECT NULL, NULL, NULL FROM head WHERE NOT EXISTS (SELECT FROM go);

-- name: request_stop :one
-- Requests the stop of an active turn: inbox row, edge, and the address of the doorbell. The head is locked and
-- changed, so that of a stop and an end at once one sees the other.
-- verdict: accepted | duplicate | already_final | queued | dispatched (the caller ends these two itself) |
-- unknown_turn.
WITH
turn AS MATERIALIZED (
    SELECT i.agent_id, i.channel_id, i.status AS inbox_status, i.context_headers,
           o.agent_turn_id IS NOT NULL AS over, a.worker_target
    FROM state.agent_inbox i
    LEFT JOIN state.turn_outcomes o ON o.agent_turn_id = i.agent_turn_id AND o.project_id = i.project_id
    LEFT JOIN resource.project_agents a ON a.agent_id = i.agent_id AND a.project_id = i.project_id
    WHERE i.agent_turn_id = :agent_turn_id AND i.project_id = :project_id AND i.message_type IN {turn_types}
),
head AS MATERIALIZED (
    SELECT h.status, h.turn_epoch FROM state.agent_state_head h
    WHERE h.agent_id = (SELECT turn.agent_id FROM turn) AND h.project_id = :project_id
      AND h.active_agent_turn_id = :agent_turn_id
    FOR NO KEY UPDATE
),
earlier AS MATERIALIZED (
    SELECT i.inbox_id FROM state.agent_inbox i
    WHERE i.correlation_id = :agent_turn_id AND i.project_id = :project_id AND i.message_type = 'stop'
),
plan AS MATERIALIZED (
    SELECT CASE WHEN turn.agent_id IS NULL THEN 'unknown_turn'
                WHEN turn.over OR turn.inbox_status IN ('skipped', 'error') AND head.status IS NULL THEN 'already_final'
                WHEN turn.inbox_status = 'queued' THEN 'queued' WHEN head.status = 'dispatched' THEN 'dispatched'
                WHEN earlier.inbox_id IS NOT NULL THEN 'duplicate' WHEN head.status IS NULL THEN 'again'
                ELSE 'accepted' END AS verdict
    FROM (SELECT) AS always LEFT JOIN turn ON true LEFT JOIN head ON true LEFT JOIN earlier ON true
),
inbox AS (
    INSERT INTO state.agent_inbox (inbox_id, project_id, agent_id, channel_id, message_type,
                                   enqueue_mode, correlation_id, agent_turn_id,
                                   turn_epoch, context_headers, payload, status, next_retry_at, created_at)
    SELECT :inbox_id, :project_id, turn.agent_id, turn.channel_id, 'stop', 'report', :agent_turn_id,
           :agent_turn_id, head.turn_epoch,
           turn.context_headers, jsonb_build_object('reason', :reason::text), 'pending', now(), clock_timestamp()
    FROM turn CROSS JOIN head CROSS JOIN plan WHERE plan.verdict = 'accepted'
    ON CONFLICT DO NOTHING
    RETURNING inbox_id
),
noted AS (  -- an end that waits for our lock compares this
    UPDATE state.agent_state_head h SET updated_at = now()
    WHERE h.agent_id = (SELECT turn.agent_id FROM turn) AND h.project_id = :project_id AND EXISTS (SELECT FROM inbox)
),
edge AS (
    INSERT INTO state.execution_edges (edge_id, project_id, channel_id, primitive, edge_phase,
                                       target_agent_id, target_agent_turn_id,
                                       correlation_id, recursion_depth, trace_id, metadata)
    SELECT 'stop-' || :agent_turn_id, :project_id, turn.channel_id, 'report', 'response', turn.agent_id,
           :agent_turn_id, :agent_turn_id, coalesce(state.as_count(turn.context_headers ->> 'CG-Recursion-Depth'), 0),
           split_part(turn.context_headers ->> 'traceparent', '-', 2), '{"kind": "stop"}'
    FROM inbox CROSS JOIN turn
    ON CONFLICT DO NOTHING
)
SELECT CASE WHEN plan.verdict = 'accepted' AND inbox.inbox_id IS NULL THEN 'again' ELSE plan.verdict END AS verdict,
       coalesce(inbox.inbox_id, earlier.inbox_id) AS inbox_id, turn.agent_id,
       coalesce(turn.channel_id, 'public') AS channel_id,
       coalesce(head.turn_epoch, 0) AS turn_epoch, turn.worker_target, turn.context_headers
FROM plan LEFT JOIN turn ON true LEFT JOIN head ON true LEFT JOIN inbox ON true LEFT JOIN earlier ON true;

-- name: describe_call :opt
-- A call for its tool: the card with the arguments, its turn, and its status.
SELECT w.tool_call_id, w.tool_name, w.agent_id, w.agent_turn_id, w.turn_epoch, w.step_id,
       w.wait_status, w.tool_result_card_id, c.card_id AS tool_call_card_id, c.content,
       CASE WHEN w.wait_status IN ('waiting', 'received')
                 AND w.held_by IS NULL THEN coalesce(w.deadline, h.resume_deadline) END AS resume_deadline,
       w.held_by IS NOT NULL AND w.wait_status = 'waiting' AS held, coalesce((
           SELECT t.options ->> 'repeat' FROM resource.tools t
           WHERE t.tool_name = w.tool_name AND t.project_id = w.project_id), 'safe') AS repeat
FROM state.turn_waiting_tools w
LEFT JOIN public.cards c ON c.card_id = coalesce(w.call_card_id, w.tool_call_id || '-call')
    AND c.tenant_id = w.project_id
LEFT JOIN state.agent_state_head h ON h.agent_id = w.agent_id AND h.project_id = w.project_id
    AND h.active_agent_turn_id = w.agent_turn_id
WHERE w.tool_call_id = :tool_call_id AND w.project_id = :project_id;
