-- Writes an event for each webhook that gets it: of the project, of the turn's profile, of the turn itself. `subject`
-- is what it is about; the same again changes nothing. A project's webhook gets the ends of turns that no turn asked
-- for.
CREATE OR REPLACE FUNCTION state.write_event(project text, turn text, kind text, subject text, about jsonb,
    only_webhook text DEFAULT NULL)
RETURNS void LANGUAGE sql VOLATILE AS $$
    INSERT INTO state.webhook_events (event_id, project_id, webhook_id, agent_turn_id, type, data)
    SELECT 'evt_' || md5(concat_ws('/', project, w.webhook_id, kind, subject)), project, w.webhook_id, turn, kind,
           about || coalesce(
               (SELECT jsonb_build_object('agent_turn_id', turn, 'agent_id', i.agent_id, 'channel_id', i.channel_id,
                                          'correlation_id', i.correlation_id,
                                          'conversation_id', nullif(i.payload ->> 'conversation_id', ''))
                FROM state.agent_inbox i
                WHERE i.agent_turn_id = turn AND i.project_id = project AND i.message_type IN ('turn', 'ui_action')
                LIMIT 1), '{}')
    FROM (
        SELECT x.* FROM state.webhooks x WHERE x.project_id = project AND x.agent_turn_id IS NULL
        UNION ALL
        SELECT x.* FROM state.webhooks x WHERE x.project_id = project AND x.agent_turn_id = turn
    ) w
    WHERE w.status = 'active' AND kind = ANY (w.events) AND (only_webhook IS NULL OR w.webhook_id = only_webhook)
      AND (w.agent_turn_id IS NOT NULL OR kind <> 'turn.ended' OR NOT EXISTS (
          SELECT FROM state.turn_nodes n WHERE n.agent_turn_id = turn AND n.parent_turn_id IS NOT NULL))
      AND (w.profile_name IS NULL OR EXISTS (
          SELECT FROM state.agent_inbox i
          JOIN resource.project_agents a ON a.project_id = i.project_id AND a.agent_id = i.agent_id
          JOIN resource.profiles p ON p.project_id = a.project_id AND p.profile_box_id = a.profile_box_id::text
          WHERE i.agent_turn_id = turn AND i.project_id = project AND lower(p.name) = lower(w.profile_name)))
    ON CONFLICT DO NOTHING
$$;
