-- An event to send to a webhook, written by the statement that made it happen: none is lost, and each has one id.
CREATE TABLE state.webhook_events (
    event_id      text PRIMARY KEY,
    project_id    text NOT NULL,
    webhook_id    text NOT NULL,
    agent_turn_id text,  -- null: of a budget of a day or month
    type          text NOT NULL,
    data          jsonb NOT NULL,
    happened_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    status        text NOT NULL DEFAULT 'active' CHECK (status IN ('active', 'done', 'given_up')),
    attempts      integer NOT NULL DEFAULT 0,
    next_at       timestamptz NOT NULL DEFAULT now(),
    last_error    text
);

CREATE INDEX webhook_events_due ON state.webhook_events (next_at) WHERE status = 'active';
-- Those that go with no turn: see list_old_events.
CREATE INDEX webhook_events_periods ON state.webhook_events (event_id) WHERE agent_turn_id IS NULL;
CREATE INDEX webhook_events_turn ON state.webhook_events (agent_turn_id) WHERE agent_turn_id IS NOT NULL;
CREATE INDEX webhook_events_webhook ON state.webhook_events (project_id, webhook_id, happened_at);
