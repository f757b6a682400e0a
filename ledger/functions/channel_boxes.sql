-- The memory and the last output box of an agent in a channel. What SQL of a v1r4 worker has set counts where the
-- channel has no pointer of its own and no other channel has the box.
CREATE OR REPLACE FUNCTION state.channel_boxes(project text, channel text, agent text, OUT memory_context_box_id uuid,
    OUT last_output_box_id uuid)
LANGUAGE sql VOLATILE AS $$
    SELECT coalesce(CASE WHEN NOT state.is_abroad(project, channel, c.memory_context_box_id)
        THEN c.memory_context_box_id END,
                    CASE WHEN NOT state.is_abroad(project, channel, p.memory_context_box_id)
                        THEN p.memory_context_box_id END),
           coalesce((SELECT b.box_id FROM public.boxes b WHERE b.box_id = c.last_output_box_id
               AND NOT state.is_written_abroad(project, channel, b.box_id)
               AND NOT state.is_read_abroad(project, channel, b.box_id)),
                    CASE WHEN NOT state.is_abroad(project, channel, p.last_output_box_id)
                        AND NOT state.is_read_abroad(project, channel, p.last_output_box_id)
                        THEN p.last_output_box_id END)
    FROM (SELECT) AS always
    LEFT JOIN state.channel_pointers c ON c.agent_id = agent AND c.channel_id = channel AND c.project_id = project
    LEFT JOIN state.agent_state_pointers p ON p.agent_id = agent AND p.project_id = project
$$;
