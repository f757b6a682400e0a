-- A correlation is one request's, be it for a turn or for a UI action: two at one moment, for two agents, could both get in. Rows
-- that strangers write have no digest and stay under their own rule. What it indexes never changes, so updates stay heap-only.
CREATE UNIQUE INDEX inbox_request ON state.agent_inbox (correlation_id, project_id)
    WHERE message_type IN ('turn', 'ui_action') AND request_digest IS NOT NULL;
