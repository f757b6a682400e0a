-- Turns that make way for one that the same principal asks for in the same conversation (protocol §6, enqueue).

-- name: make_way :many
-- What a turn that this transaction has enqueued finds in its conversation. First a row with the verdict on the whole:
-- accepted | no_conversation | queue_full | turn_in_progress; then a row for each turn that stops: queued | dispatched
-- | accepted, as of request_stop. With rollback the conversation goes on in :new_box_id, if a turn in hand wrote its
-- box.
SELECT w.verdict, w.agent_turn_id, w.agent_id, w.channel_id, w.inbox_id, w.turn_epoch,
       w.worker_target, w.context_headers
FROM state.make_way(:project_id, :agent_turn_id, :strategy, :principal, :reason, :max_queued_turns::int,
                    :new_box_id::text::uuid) w;

-- name: made_way :one
-- The turns that made way for this one, as it was enqueued.
SELECT coalesce(i.payload -> 'multitask' -> 'stopped', '[]') AS stopped FROM state.agent_inbox i
WHERE i.agent_turn_id = :agent_turn_id AND i.project_id = :project_id AND i.message_type = 'turn';

-- name: turn_requester :opt
-- Who asked for a turn of a channel, which never changes; null if nobody said.
SELECT i.context_headers ->> 'CG-Sender' AS requester FROM state.agent_inbox i
WHERE i.agent_turn_id = :agent_turn_id AND i.project_id = :project_id
  AND i.channel_id = :channel_id AND i.message_type IN {turn_types};

-- name: find_steer :opt
-- A steer by its id: whose it is, and where it stands.
SELECT s.steer_id, s.status AS steer_status, s.request_digest, s.agent_turn_id, s.agent_id,
       i.channel_id, i.context_headers
FROM state.steers s JOIN state.agent_inbox i ON i.agent_turn_id = s.agent_turn_id
    AND i.project_id = s.project_id AND i.message_type IN {turn_types}
WHERE s.steer_id = :steer_id AND s.project_id = :project_id;
