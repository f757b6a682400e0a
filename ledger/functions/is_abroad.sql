-- Whether another channel has said or made anything in a box: it writes there, or a card there is of a turn of it, or
-- was made by box_make in it. OFFSET 0: see prunable_threads.
CREATE OR REPLACE FUNCTION state.is_abroad(project text, channel text, box uuid) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN state.is_written_abroad(project, channel, box) OR EXISTS (
        SELECT FROM (
            SELECT DISTINCT c.metadata ->> 'agent_turn_id' AS agent_turn_id, c.metadata ->> 'channel_id' AS channel_id
            FROM public.box_cards p CROSS JOIN LATERAL (
                SELECT x.metadata FROM public.cards x WHERE x.card_id = p.card_id OFFSET 0) c
            WHERE p.box_id = box) made
        WHERE (made.agent_turn_id IS NULL AND made.channel_id <> channel)
           OR EXISTS (SELECT FROM state.agent_inbox i WHERE i.agent_turn_id = made.agent_turn_id
               AND i.project_id = project
                        AND i.message_type IN ('turn', 'ui_action') AND i.channel_id <> channel OFFSET 0));
END $$;
