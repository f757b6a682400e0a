-- A turn that is being enqueued, as write_turns takes it. turn_epoch is that of the lease that its agent has for it, 0
-- for a turn that is queued. `settings` is payload without the boxes, `edge` the metadata of the enqueue's edge. What
-- makes_context makes of the turn's context box: the cards of the boxes in `inherits` that are alive, in order and each
-- once, then `cards`, an array of {card_id, content, metadata}.
CREATE TYPE state.new_turn AS (
    agent_id text, channel_id text, agent_turn_id text, inbox_id text, message_type text, correlation_id text,
    request_digest text, turn_epoch bigint, claimed boolean, headers jsonb, settings jsonb, edge jsonb,
    profile_box_id uuid, context_box_id uuid, output_box_id uuid, makes_context boolean, makes_output boolean,
    inherits uuid[], cards jsonb, created_at timestamptz);
