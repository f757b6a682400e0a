-- Sets a webhook of a project, of a profile, or of a turn (protocol §17.6). A turn's is set behind the locks of its
-- head and its request, which its end takes, too: so it is sent the end, whichever comes first.
-- verdict: accepted | unknown_turn | unknown_profile | too_many_webhooks | pushes_full
CREATE OR REPLACE FUNCTION state.put_webhook(project text, channel text, webhook text, profile text, turn text,
    address text, key text, kinds text[], maker text, most int, most_open bigint, OUT verdict text)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    asked state.agent_inbox;
    ended state.turn_outcomes;
    question state.interrupts;
BEGIN
    IF turn IS NOT NULL THEN
        SELECT i.* INTO asked FROM state.agent_inbox i
        WHERE i.agent_turn_id = turn AND i.project_id = project AND i.channel_id = channel
          AND i.message_type IN ('turn', 'ui_action');
        IF NOT FOUND THEN
            verdict := 'unknown_turn';
            RETURN;
        END IF;
        IF NOT EXISTS (SELECT FROM state.webhooks w
                       WHERE w.project_id = project AND w.webhook_id = webhook AND w.status = 'active')
            AND state.is_full('pushes', project, maker, most_open) THEN
            verdict := 'pushes_full';
            RETURN;
        END IF;
        PERFORM FROM state.agent_state_head h
        WHERE h.project_id = project AND h.agent_id = asked.agent_id FOR NO KEY UPDATE;
        PERFORM FROM state.agent_inbox i WHERE i.inbox_id = asked.inbox_id FOR NO KEY UPDATE;
    ELSE
        PERFORM pg_advisory_xact_lock(hashtextextended('put_webhook/' || project, 0));
        IF profile IS NOT NULL AND NOT EXISTS (
            SELECT FROM resource.profiles p WHERE p.project_id = project AND lower(p.name) = lower(profile)) THEN
            verdict := 'unknown_profile';
            RETURN;
        END IF;
        IF most <= (SELECT count(*) FROM state.webhooks w
                    WHERE w.project_id = project AND w.agent_turn_id IS NULL AND w.webhook_id <> webhook) THEN
            verdict := 'too_many_webhooks';
            RETURN;
        END IF;
    END IF;
    INSERT INTO state.webhooks AS w (project_id, webhook_id, profile_name, agent_turn_id, url, secret, events,
        created_by)
    VALUES (project, webhook, profile, turn, address, key, kinds, maker)
    ON CONFLICT (project_id, webhook_id) DO UPDATE SET profile_name = excluded.profile_name, url = excluded.url,
        secret = excluded.secret, events = excluded.events, created_by = excluded.created_by, status = 'active',
        updated_at = now();
    IF turn IS NOT NULL THEN
        SELECT o.* INTO ended FROM state.turn_outcomes o WHERE o.agent_turn_id = turn;
        IF FOUND THEN
            PERFORM state.write_event(project, turn, 'turn.ended', turn,
                jsonb_build_object('status', ended.status, 'error_code', ended.error_code), webhook);
            UPDATE state.webhooks w SET status = 'done' WHERE w.project_id = project AND w.webhook_id = webhook;
        END IF;
        FOR question IN SELECT q.* FROM state.interrupts q WHERE q.agent_turn_id = turn AND q.status = 'open'
            AND q.reason <> 'client_tool' LOOP
            PERFORM state.write_event(project, turn, 'interrupt.opened', question.interrupt_id, jsonb_build_object(
                'interrupt_id', question.interrupt_id, 'reason', question.reason, 'expires_at', question.expires_at),
                webhook);
        END LOOP;
    END IF;
    verdict := 'accepted';
END $$;
