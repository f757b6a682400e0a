-- Receivers of push notifications, for those who may not read secrets.
CREATE OR REPLACE VIEW state.push_configs AS
SELECT agent_turn_id, receiver_id, project_id, channel_id, url, token IS NOT NULL AS has_token, created_by, created_at,
    status, told_state, next_at, last_error
FROM state.push_receivers;
