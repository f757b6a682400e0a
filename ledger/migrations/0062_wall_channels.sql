-- What an agent remembers is its channel's: pointers by agent and channel, and which boxes another channel has (protocol §4.2, §6).

-- agent_state_pointers stays as v1r4 has it: what any turn, or box_replace, set last. A last output box is kept by its turn, a memory by its row.
CREATE TABLE state.channel_pointers (
    project_id text NOT NULL,
    channel_id text NOT NULL,
    agent_id text NOT NULL,
    memory_context_box_id uuid,
    last_output_box_id uuid,
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (agent_id, channel_id, project_id)
);
CREATE INDEX channel_pointers_memory ON state.channel_pointers (memory_context_box_id) WHERE memory_context_box_id IS NOT NULL;

INSERT INTO state.channel_pointers (project_id, channel_id, agent_id, last_output_box_id)
SELECT DISTINCT ON (o.agent_id, o.channel_id, o.project_id) o.project_id, o.channel_id, o.agent_id, o.output_box_id
FROM state.turn_outcomes o WHERE o.turn_epoch > 0
ORDER BY o.agent_id, o.channel_id, o.project_id, o.turn_epoch DESC;

-- Whether another channel writes in a box: its turns do, or a conversation of it is kept there. Volatile, so that who has locked the box sees
-- what others committed before.
CREATE FUNCTION state.is_written_abroad(project text, channel text, box uuid) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM state.agent_inbox i
        WHERE lower(i.payload ->> 'output_box_id') = box::text AND i.message_type IN ('turn', 'ui_action')
          AND i.project_id = project AND i.channel_id <> channel OFFSET 0)
    OR EXISTS (SELECT FROM state.conversations c WHERE c.output_box_id = box AND c.channel_id <> channel OFFSET 0);
END $$;

-- Whether another channel has said or made anything in a box: it writes there, or a card there is of a turn of it, or was made by box_make in it.
CREATE FUNCTION state.is_abroad(project text, channel text, box uuid) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN state.is_written_abroad(project, channel, box) OR EXISTS (
        SELECT FROM (
            SELECT DISTINCT c.metadata ->> 'agent_turn_id' AS agent_turn_id, c.metadata ->> 'channel_id' AS channel_id
            FROM public.box_cards p CROSS JOIN LATERAL (  -- OFFSET 0: card by card, by key
                SELECT x.metadata FROM public.cards x WHERE x.card_id = p.card_id OFFSET 0) c
            WHERE p.box_id = box) made
        WHERE (made.agent_turn_id IS NULL AND made.channel_id <> channel)
           OR EXISTS (SELECT FROM state.agent_inbox i WHERE i.agent_turn_id = made.agent_turn_id AND i.project_id = project
                        AND i.message_type IN ('turn', 'ui_action') AND i.channel_id <> channel OFFSET 0));
END $$;

-- The memory and the last output box of an agent in a channel. What SQL of a v1r4 worker or an older bridge has set counts where the channel
-- has no pointer of its own and no other channel has the box.
CREATE FUNCTION state.channel_boxes(project text, channel text, agent text, OUT memory_context_box_id uuid, OUT last_output_box_id uuid)
LANGUAGE sql VOLATILE AS $$
    SELECT coalesce(CASE WHEN NOT state.is_abroad(project, channel, c.memory_context_box_id) THEN c.memory_context_box_id END,
                    CASE WHEN NOT state.is_abroad(project, channel, p.memory_context_box_id) THEN p.memory_context_box_id END),
           coalesce((SELECT b.box_id FROM public.boxes b WHERE b.box_id = c.last_output_box_id AND NOT state.is_written_abroad(project, channel, b.box_id)),
                    CASE WHEN NOT state.is_abroad(project, channel, p.last_output_box_id) THEN p.last_output_box_id END)
    FROM (SELECT) AS always
    LEFT JOIN state.channel_pointers c ON c.agent_id = agent AND c.channel_id = channel AND c.project_id = project
    LEFT JOIN state.agent_state_pointers p ON p.agent_id = agent AND p.project_id = project
$$;

-- As before, and a channel's memory keeps its box.
CREATE OR REPLACE FUNCTION state.unused_boxes(before timestamptz, planned boolean) RETURNS TABLE (box_id uuid, project_id text)
LANGUAGE sql STABLE AS $$
    SELECT b.box_id, b.tenant_id FROM public.boxes b
    WHERE b.created_at < before AND b.updated_at < before
      AND NOT EXISTS (SELECT FROM state.agent_state_head h WHERE h.output_box_id = b.box_id OFFSET 0)
      AND NOT EXISTS (SELECT FROM state.agent_state_pointers p WHERE p.memory_context_box_id = b.box_id OFFSET 0)
      AND NOT EXISTS (SELECT FROM state.channel_pointers p WHERE p.memory_context_box_id = b.box_id OFFSET 0)
      AND NOT EXISTS (SELECT FROM state.agent_state_pointers p
                      WHERE p.replaced_output_box_id = b.box_id AND p.last_output_box_id = b.box_id OFFSET 0)
      AND NOT EXISTS (SELECT FROM resource.profiles p WHERE p.profile_box_id = b.box_id::text AND p.project_id = b.tenant_id OFFSET 0)
      AND NOT EXISTS (SELECT FROM resource.project_agents a WHERE a.profile_box_id = b.box_id OFFSET 0)
      AND NOT EXISTS (
          SELECT FROM state.conversations c WHERE c.output_box_id = b.box_id
            AND NOT (planned AND EXISTS (
                SELECT FROM state.prunable_conversations(before) x WHERE x.output_box_id = c.output_box_id OFFSET 0)) OFFSET 0)
      AND NOT EXISTS (
          SELECT FROM state.thread_segments s WHERE s.output_box_id = b.box_id
            AND NOT (planned AND EXISTS (SELECT FROM state.prunable_threads(before) t WHERE t.thread_id = s.thread_id OFFSET 0)) OFFSET 0)
      AND NOT EXISTS (
          SELECT FROM state.turn_boxes x WHERE x.box_id = b.box_id::text
            AND NOT (planned AND EXISTS (SELECT FROM state.prunable_turns(before) t WHERE t.agent_turn_id = x.agent_turn_id OFFSET 0)) OFFSET 0)
      AND NOT EXISTS (  -- a turn stopped in the queue may have its deliverable in a box that only its outcome names
          SELECT FROM public.box_cards p JOIN public.cards c ON c.card_id = p.card_id
          JOIN state.turn_outcomes o ON o.agent_turn_id = c.metadata ->> 'agent_turn_id' AND o.output_box_id = b.box_id
          WHERE p.box_id = b.box_id
            AND NOT (planned AND EXISTS (SELECT FROM state.prunable_turns(before) t WHERE t.agent_turn_id = o.agent_turn_id OFFSET 0)) OFFSET 0)
$$;

-- As before, with the boxes that channels' pointers name.
CREATE OR REPLACE FUNCTION state.agent_boxes(project text, agents text[]) RETURNS TABLE (box_id uuid) LANGUAGE sql STABLE AS $$
    SELECT state.as_uuid(b.box_id) FROM state.agent_inbox i JOIN state.turn_boxes b ON b.agent_turn_id = i.agent_turn_id
    WHERE i.project_id = project AND i.agent_id = ANY (agents) AND i.message_type IN ('turn', 'ui_action')
    UNION SELECT o.output_box_id FROM state.turn_outcomes o WHERE o.project_id = project AND o.agent_id = ANY (agents)
    UNION SELECT c.output_box_id FROM state.conversations c WHERE c.project_id = project AND c.agent_id = ANY (agents)
    UNION SELECT p.memory_context_box_id FROM state.agent_state_pointers p WHERE p.project_id = project AND p.agent_id = ANY (agents)
    UNION SELECT p.last_output_box_id FROM state.agent_state_pointers p WHERE p.project_id = project AND p.agent_id = ANY (agents)
    UNION SELECT p.memory_context_box_id FROM state.channel_pointers p WHERE p.project_id = project AND p.agent_id = ANY (agents)
    UNION SELECT p.last_output_box_id FROM state.channel_pointers p WHERE p.project_id = project AND p.agent_id = ANY (agents)
    UNION SELECT a.profile_box_id FROM resource.project_agents a WHERE a.project_id = project AND a.agent_id = ANY (agents)
$$;
