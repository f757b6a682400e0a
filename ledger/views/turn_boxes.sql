-- The boxes that turns name, and those that their steps made, which a rerun reads: they are in use as long as the turn
-- is there.
CREATE OR REPLACE VIEW state.turn_boxes AS
SELECT lower(i.payload ->> 'output_box_id') AS box_id, i.agent_turn_id FROM state.agent_inbox i
WHERE i.message_type IN ('turn', 'ui_action')
UNION ALL
SELECT lower(i.payload ->> 'context_box_id'), i.agent_turn_id FROM state.agent_inbox i
WHERE i.message_type IN ('turn', 'ui_action')
UNION ALL
SELECT lower(i.payload ->> 'profile_box_id'), i.agent_turn_id FROM state.agent_inbox i
WHERE i.message_type IN ('turn', 'ui_action')
UNION ALL
SELECT s.metadata #>> '{compaction,output_box_id}', s.agent_turn_id FROM state.agent_steps s
WHERE s.metadata ? 'compaction';
