-- What a world does to its database that no actor of the protocol does.

-- name: note_workflow :exec
-- The engine has a workflow of this turn.
INSERT INTO explore.workflows AS w (agent_turn_id, known) VALUES (:agent_turn_id, true)
ON CONFLICT (agent_turn_id) DO UPDATE SET known = true WHERE NOT w.known;

-- name: knows_workflow :one
-- Whether the engine has, or had, a workflow of this turn.
SELECT EXISTS (SELECT FROM explore.workflows w WHERE w.agent_turn_id = :agent_turn_id AND w.known) AS known;

-- name: wipe_engine :exec
-- Temporal's data is deleted: it knows no workflow any more.
UPDATE explore.workflows w SET known = false WHERE w.known;

-- name: hold_turn :exec
-- Holds the head and the calls of a turn, so that the next statement sees what whoever held them has done.
WITH head AS MATERIALIZED (
    SELECT h.active_agent_turn_id FROM state.agent_state_head h WHERE h.active_agent_turn_id = :agent_turn_id FOR NO KEY UPDATE
)
SELECT FROM head JOIN state.turn_waiting_tools w ON w.agent_turn_id = head.active_agent_turn_id ORDER BY w.tool_call_id FOR NO KEY UPDATE OF w;

-- name: pass_deadlines :exec
-- Time passes: the deadline of this suspended turn, and of its calls, is over; of one whose tool asks a person only after the question's.
WITH calls AS (
    UPDATE state.turn_waiting_tools w SET deadline = '2020-01-01T00:00:00Z'
    WHERE w.agent_turn_id = :agent_turn_id AND w.deadline > now() AND NOT EXISTS (
        SELECT FROM state.interrupts q WHERE q.agent_turn_id = w.agent_turn_id AND q.status = 'open' AND q.expires_at > now())
)
UPDATE state.agent_state_head h SET resume_deadline = '2020-01-01T00:00:00Z'
WHERE h.active_agent_turn_id = :agent_turn_id AND h.resume_deadline > now();

-- name: pass_message_deadline :exec
-- Time passes: the deadline of the turn that this message waits for is over.
UPDATE state.thread_messages m SET deadline = '2020-01-01T00:00:00Z' WHERE m.message_id = :message_id AND m.deadline > now();

-- name: pass_batch_deadline :exec
-- Time passes: the deadline of this batch is over.
UPDATE state.pmo_batches b SET deadline_at = '2020-01-01T00:00:00Z' WHERE b.batch_id = :batch_id AND b.deadline_at > now();

-- name: pass_expiry :exec
-- Time passes: nobody may answer this question any more.
UPDATE state.interrupts q SET expires_at = '2020-01-01T00:00:00Z' WHERE q.interrupt_id = :interrupt_id AND q.expires_at > now();

-- name: sign_on :exec
-- A worker serves the target, before and after the whole exploration.
INSERT INTO state.workers (worker_target, instance, last_seen_at, started_at)
VALUES (:worker_target, 'explore', now() + interval '10 years', now() - interval '1 year');
