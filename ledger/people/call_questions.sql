-- What tools ask people under the calls that they run (protocol §13.8).

-- name: find_call_question :opt
-- What a call's tool has asked by a key, and what became of it.
SELECT q.interrupt_id, q.status, q.call_digest, q.decision, q.response, q.comment
FROM state.interrupts q WHERE q.interrupt_id = :interrupt_id AND q.project_id = :project_id AND q.call_key IS NOT NULL;

-- name: ask_under_call :one
-- Asks a person under a call, once for each key; see its function.
SELECT state.ask_under_call(:project_id, :tool_call_id, :asked::jsonb) AS asked;
