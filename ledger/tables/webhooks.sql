-- Where ends of turns, questions and warnings of budgets are sent by HTTP (protocol §17.6): of all turns of a project,
-- of those of a profile, or of one turn, of which each caller may set one: its id is then the turn's, a slash, and a
-- digest of the caller.
CREATE TABLE state.webhooks (
    project_id    text NOT NULL,
    webhook_id    text NOT NULL,
    profile_name  text,
    agent_turn_id text,
    url           text NOT NULL,
    secret        text NOT NULL,
    events        text[] NOT NULL CHECK (events <@ ARRAY['turn.ended', 'interrupt.opened', 'budget.warned']),
    status        text NOT NULL DEFAULT 'active' CHECK (status IN ('active', 'gone', 'done')),
    created_by    text NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT now(),
    updated_at    timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (project_id, webhook_id),
    CHECK (profile_name IS NULL OR agent_turn_id IS NULL),
    CHECK (coalesce(starts_with(webhook_id, agent_turn_id || '/'), webhook_id NOT LIKE '%/%'))
);

CREATE INDEX webhooks_of_project ON state.webhooks (project_id) WHERE agent_turn_id IS NULL;
CREATE INDEX webhooks_turn ON state.webhooks (agent_turn_id) WHERE agent_turn_id IS NOT NULL;
-- Those of a caller whose turns are not over: see is_full.
CREATE INDEX webhooks_open ON state.webhooks (project_id COLLATE "C", created_by)
    WHERE status = 'active' AND agent_turn_id IS NOT NULL;

COMMENT ON COLUMN state.webhooks.status IS
    'gone: the receiver answered 410; put again, it is active. done: its turn is over';
