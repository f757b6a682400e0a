-- Boxes that were made, and let go by a profile, before a moment, and that nothing names: no turn, head, pointer,
-- profile, agent, conversation, channel or segment, and no outcome of a turn that wrote into it. Planned: as if what is
-- prunable were gone already. OFFSET 0: see prunable_threads.
CREATE OR REPLACE FUNCTION state.unused_boxes(before timestamptz, planned boolean)
RETURNS TABLE (box_id uuid, project_id text)
LANGUAGE sql STABLE AS $$
    SELECT b.box_id, b.tenant_id FROM public.boxes b
    WHERE b.created_at < before AND b.updated_at < before
      AND NOT EXISTS (SELECT FROM state.agent_state_head h WHERE h.output_box_id = b.box_id OFFSET 0)
      AND NOT EXISTS (SELECT FROM state.agent_state_pointers p WHERE p.memory_context_box_id = b.box_id OFFSET 0)
      AND NOT EXISTS (SELECT FROM state.channel_pointers p WHERE p.memory_context_box_id = b.box_id OFFSET 0)
      AND NOT EXISTS (SELECT FROM state.agent_state_pointers p
                      WHERE p.replaced_output_box_id = b.box_id AND p.last_output_box_id = b.box_id OFFSET 0)
      AND NOT EXISTS (SELECT FROM resource.profiles p WHERE p.profile_box_id = b.box_id::text
          AND p.project_id = b.tenant_id OFFSET 0)
      AND NOT EXISTS (SELECT FROM resource.project_agents a WHERE a.profile_box_id = b.box_id OFFSET 0)
      AND NOT EXISTS (
          SELECT FROM state.conversations c WHERE c.output_box_id = b.box_id
            AND NOT (planned AND EXISTS (
                SELECT FROM state.prunable_conversations(before) x
                WHERE x.output_box_id = c.output_box_id OFFSET 0)) OFFSET 0)
      AND NOT EXISTS (
          SELECT FROM state.thread_segments s WHERE s.output_box_id = b.box_id
            AND NOT (planned AND EXISTS (SELECT FROM state.prunable_threads(before) t
                WHERE t.thread_id = s.thread_id OFFSET 0)) OFFSET 0)
      AND NOT EXISTS (
          SELECT FROM state.turn_boxes x WHERE x.box_id = b.box_id::text
            AND NOT (planned AND EXISTS (SELECT FROM state.prunable_turns(before) t
                WHERE t.agent_turn_id = x.agent_turn_id OFFSET 0)) OFFSET 0)
      AND NOT EXISTS (  -- a turn stopped in the queue may have its deliverable in a box that only its outcome names
          SELECT FROM public.box_cards p JOIN public.cards c ON c.card_id = p.card_id
          JOIN state.turn_outcomes o ON o.agent_turn_id = c.metadata ->> 'agent_turn_id' AND o.output_box_id = b.box_id
          WHERE p.box_id = b.box_id
            AND NOT (planned AND EXISTS (SELECT FROM state.prunable_turns(before) t
                WHERE t.agent_turn_id = o.agent_turn_id OFFSET 0)) OFFSET 0)
$$;
