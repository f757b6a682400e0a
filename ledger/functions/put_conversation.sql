-- Makes a conversation of a channel, gives it to an agent, or moves its pointer to a box with more or fewer cards
-- (protocol §6, conversation.put). The conversation is locked before the head, as an enqueue and a compaction do.
-- `seen` is the box of which the caller knows the cards. A maker has at most `most` conversations that no agent has.
-- verdict: accepted | duplicate | again (repeat the statement) | the code of a refusal.
CREATE OR REPLACE FUNCTION state.put_conversation(project text, channel text, conversation text, agent text, note jsonb,
    seen uuid, added uuid, dropped text[], new_box uuid, card_limit int, maker text, most int,
    OUT verdict text, OUT of_agent text, OUT box uuid, OUT noted jsonb)
LANGUAGE plpgsql AS $$
DECLARE
    c state.conversations;
    names int;
BEGIN
    SELECT count(*) INTO names FROM state.conversations x
    WHERE x.project_id COLLATE "C" = project AND x.conversation_id COLLATE "C" = conversation
      AND x.channel_id = channel;
    IF names > 1 AND agent IS NULL THEN
        verdict := 'ambiguous';
        RETURN;
    END IF;
    SELECT x.* INTO c FROM state.conversations x
    WHERE x.project_id COLLATE "C" = project AND x.conversation_id COLLATE "C" = conversation
      AND x.channel_id = channel
    ORDER BY x.agent_id = agent DESC, x.agent_id LIMIT 1 FOR NO KEY UPDATE;
    IF state.is_being_deleted(project, channel, c.agent_id, conversation, NULL, NULL) THEN
        verdict := 'being_deleted';
        RETURN;
    END IF;
    IF added IS NOT NULL THEN  -- locked: retention skips it, and no other channel begins to write there
        PERFORM FROM state.hold_boxes(project, ARRAY[added], '{}');
        IF NOT FOUND OR state.is_abroad(project, channel, added) THEN
            verdict := 'unknown_box';
            RETURN;
        END IF;
    END IF;
    IF c.conversation_id IS NULL THEN
        IF agent IS NOT NULL OR seen IS NOT NULL THEN
            verdict := CASE names WHEN 0 THEN 'unknown_conversation' ELSE 'again' END;
            RETURN;
        END IF;
        IF state.is_full('conversations', project, maker, most) THEN
            verdict := 'conversations_full';
            RETURN;
        END IF;
        INSERT INTO state.conversations (project_id, channel_id, agent_id, conversation_id, output_box_id, notes,
            made_by)
        VALUES (project, channel, '', conversation, new_box, coalesce(note, '{}'), maker) ON CONFLICT DO NOTHING;
        IF NOT FOUND THEN
            verdict := 'again';
            RETURN;
        END IF;
        INSERT INTO public.boxes (box_id, tenant_id) VALUES (new_box, project);
        INSERT INTO public.box_cards (box_id, position, card_id)
        SELECT new_box, row_number() OVER (ORDER BY b.position), b.card_id
        FROM public.box_cards b WHERE b.box_id = added;
        UPDATE public.boxes b SET unused_of = NULL WHERE b.box_id = added AND b.unused_of IS NOT NULL;
        SELECT 'accepted', '', new_box, coalesce(note, '{}') INTO verdict, of_agent, box, noted;
        RETURN;
    END IF;
    IF agent <> c.agent_id THEN
        IF c.agent_id <> '' THEN
            verdict := 'conversation_of_another';
            RETURN;
        END IF;
        UPDATE state.conversations x SET agent_id = agent, updated_at = now() WHERE x.output_box_id = c.output_box_id;
        c.agent_id := agent;
    END IF;
    IF seen IS NOT NULL THEN
        PERFORM FROM state.agent_state_head h
        WHERE h.agent_id = c.agent_id AND h.project_id = project FOR NO KEY UPDATE;
        verdict := CASE
            WHEN seen <> c.output_box_id THEN 'conversation_changed'
            WHEN EXISTS (SELECT FROM state.agent_state_head h WHERE h.output_box_id = c.output_box_id)
            THEN 'conversation_locked'
            WHEN EXISTS (
                SELECT FROM unnest(dropped) d (card_id) WHERE NOT EXISTS (
                    SELECT FROM public.box_cards b WHERE b.box_id = c.output_box_id AND b.card_id = d.card_id))
            THEN 'unknown_card'
            WHEN card_limit < (
                SELECT count(DISTINCT b.card_id) FROM public.box_cards b
                WHERE b.box_id IN (c.output_box_id, added) AND b.card_id <> ALL (dropped))
            THEN 'too_many_cards'
            END;
        IF verdict IS NOT NULL THEN
            RETURN;
        END IF;
        INSERT INTO public.boxes (box_id, tenant_id, parent_ids) VALUES (new_box, project, ARRAY[c.output_box_id]);
        INSERT INTO public.box_cards (box_id, position, card_id)
        SELECT new_box, row_number() OVER (ORDER BY x.part, x.position), x.card_id FROM (
            SELECT 1 AS part, b.position, b.card_id FROM public.box_cards b
            WHERE b.box_id = c.output_box_id AND b.card_id <> ALL (dropped)
            UNION ALL
            SELECT 2, b.position, b.card_id FROM public.box_cards b
            WHERE b.box_id = added AND NOT EXISTS (
                SELECT FROM public.box_cards o WHERE o.box_id = c.output_box_id AND o.card_id = b.card_id)) x;
        UPDATE public.boxes b SET unused_of = NULL WHERE b.box_id = added AND b.unused_of IS NOT NULL;
        UPDATE state.agent_state_pointers p SET last_output_box_id = new_box, updated_at = now()
        WHERE p.agent_id = c.agent_id AND p.project_id = project AND p.last_output_box_id = c.output_box_id;
        UPDATE state.channel_pointers p SET last_output_box_id = new_box, updated_at = now()
        WHERE p.agent_id = c.agent_id AND p.project_id = project AND p.last_output_box_id = c.output_box_id;
    END IF;
    UPDATE state.conversations x SET notes = coalesce(x.notes, '{}') || coalesce(note, '{}'), updated_at = now(),
        output_box_id = CASE WHEN seen IS NULL THEN x.output_box_id ELSE new_box END
    WHERE x.output_box_id = c.output_box_id
    RETURNING x.output_box_id, x.notes INTO box, noted;
    verdict := CASE WHEN seen IS NULL AND note IS NULL AND agent IS NULL THEN 'duplicate' ELSE 'accepted' END;
    of_agent := c.agent_id;
END $$;
