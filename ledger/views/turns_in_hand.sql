-- The turns that agents have in hand: gate and boxes, for whoever must act on one from outside, and how it is getting
-- on.
CREATE OR REPLACE VIEW state.turns_in_hand AS
SELECT h.project_id, coalesce(h.active_channel_id, 'public') AS channel_id, h.agent_id,
       h.active_agent_turn_id AS agent_turn_id, h.turn_epoch, coalesce(h.active_inbox_id, '') AS inbox_id,
       coalesce(a.worker_target, 'worker_generic') AS worker_target,
       coalesce(h.profile_box_id, h.context_box_id)::text AS profile_box_id, h.context_box_id::text AS context_box_id,
       h.output_box_id::text AS output_box_id, coalesce(h.trace_id, '') AS trace_id, h.status, h.updated_at,
       h.resume_deadline, h.restart_count
FROM state.agent_state_head h
LEFT JOIN resource.project_agents a ON a.agent_id = h.agent_id AND a.project_id = h.project_id
WHERE h.output_box_id IS NOT NULL;
