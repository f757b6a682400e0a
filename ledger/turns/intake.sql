-- Enqueue, and the stop of a queued turn (protocol §6).

-- name: enqueue_turn :one
-- Writes a turn with its boxes, cards and edge, and leases the agent to it if nothing is before it.
-- verdict: as of the function.
SELECT {enqueued(e)}
FROM state.enqueue_turn(:request::jsonb, :claimed_targets::text[]) e;

-- name: stop_queued_turn :opt
-- Ends a queued turn at epoch 0: skips its row, writes deliverable and outcome, in the box that it named if no other
-- agent holds that, else in a new one. A turn of a conversation has no box before its lease, so that what never ran is
-- not in the conversation's memory. No row: the turn is not queued.
WITH
head AS MATERIALIZED (
    SELECT h.agent_id FROM state.agent_state_head h
    WHERE h.agent_id = :agent_id AND h.project_id = :project_id FOR NO KEY UPDATE
),
skipped AS (
    UPDATE state.agent_inbox i SET status = 'skipped', last_error = :error_code, archived_at = now(),
                                   next_retry_at = now()
    FROM head
    WHERE i.agent_turn_id = :agent_turn_id AND i.agent_id = head.agent_id AND i.project_id = :project_id
      AND {is_null(i.archived_at)} AND i.status = 'queued'
    RETURNING i.inbox_id, i.channel_id, state.as_uuid(i.payload ->> 'output_box_id') AS wanted_box_id,
              split_part(i.context_headers ->> 'traceparent', '-', 2) AS trace_id, i.created_at,
              i.context_headers, i.payload
),
target AS MATERIALIZED (
    SELECT s.*, s.wanted_box_id IS NOT NULL AND NOT EXISTS (
               SELECT FROM state.agent_state_head busy
               WHERE busy.output_box_id = s.wanted_box_id AND busy.agent_id <> :agent_id) AS free
    FROM skipped s
),
fresh AS (
    INSERT INTO public.boxes (box_id, tenant_id) SELECT :new_box_id::uuid, :project_id FROM target WHERE NOT free
),
card AS (
    INSERT INTO public.cards (card_id, tenant_id, content, metadata)
    SELECT :card_id, :project_id, :content::jsonb, :metadata::jsonb FROM target
),
outcome AS (
    INSERT INTO state.turn_outcomes (agent_turn_id, project_id, agent_id, channel_id, turn_epoch, inbox_id, status,
                                     deliverable_card_id, output_box_id, error_code, error, trace_id, stats)
    SELECT :agent_turn_id, :project_id, :agent_id, t.channel_id, 0, t.inbox_id, 'canceled', :card_id,
           CASE WHEN t.free THEN t.wanted_box_id ELSE :new_box_id::uuid END, :error_code, :error::text, t.trace_id,
           jsonb_build_object('steps', 0) || state.turn_timing(t.created_at, NULL) || {rolled_back(t)}
    FROM target t
    RETURNING channel_id, inbox_id, status, deliverable_card_id, output_box_id, stats, ended_at
),
last AS MATERIALIZED (
    SELECT coalesce(max(b.position), 0) AS position FROM outcome o JOIN public.box_cards b ON b.box_id = o.output_box_id
),
own AS MATERIALIZED (  -- if the agent's active turn writes that box, its next position moves on
    UPDATE state.agent_state_head h SET output_position = greatest(h.output_position, last.position) + 1
    FROM outcome o CROSS JOIN last WHERE h.agent_id = :agent_id AND h.project_id = :project_id
      AND h.output_box_id = o.output_box_id
    RETURNING h.output_position AS position
),
boxed AS (
    INSERT INTO public.box_cards (box_id, position, card_id)
    SELECT o.output_box_id, coalesce((SELECT position FROM own), last.position + 1), :card_id
    FROM outcome o CROSS JOIN last
)
SELECT o.channel_id, o.inbox_id, o.status, o.deliverable_card_id, o.output_box_id::text AS output_box_id,
       o.stats, o.ended_at,
       t.context_headers, EXISTS (SELECT FROM state.turn_nodes m WHERE m.agent_turn_id = :agent_turn_id) AS in_tree,
       ARRAY(SELECT s.steer_id FROM state.steers s WHERE s.agent_turn_id = :agent_turn_id AND s.status = 'waiting'
             ORDER BY s.seq) AS skipped_steers
FROM outcome o CROSS JOIN target t;
