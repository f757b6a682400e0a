-- Webhooks without their secrets; whether a turn's has its end as an event, how many events are still to be sent, since
-- when one is due, and why one was not taken.
CREATE OR REPLACE VIEW state.webhook_configs AS
SELECT w.project_id, w.webhook_id, w.profile_name, w.agent_turn_id, w.url, w.events, w.status, w.created_by,
    w.created_at, w.updated_at,
    EXISTS (SELECT FROM state.webhook_events e
            WHERE e.agent_turn_id = w.agent_turn_id AND e.project_id = w.project_id AND e.webhook_id = w.webhook_id
              AND e.type = 'turn.ended') AS has_end,
    x.waiting, x.due_since, x.last_error
FROM state.webhooks w
CROSS JOIN LATERAL (
    SELECT count(*) AS waiting, min(e.next_at) AS due_since, max(e.last_error) AS last_error
    FROM state.webhook_events e
    WHERE e.project_id = w.project_id AND e.webhook_id = w.webhook_id AND e.status = 'active') x;
