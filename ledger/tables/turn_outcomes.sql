-- Invariants 3 and 4: one row per turn that ended, its deliverable not null; announced_at once its task event is safe.
CREATE TABLE state.turn_outcomes (
    agent_turn_id       text PRIMARY KEY,
    project_id          text NOT NULL,
    agent_id            text NOT NULL,
    channel_id          text NOT NULL,
    turn_epoch          bigint NOT NULL,
    inbox_id            text,
    status              text NOT NULL CHECK (status = ANY ('{success,failed,canceled,timeout,partial}')),
    deliverable_card_id text NOT NULL,
    tool_result_card_id text,
    output_box_id       uuid NOT NULL,
    error_code          text,
    error               text,
    stats               jsonb NOT NULL DEFAULT '{}',
    trace_id            text,
    started_at          timestamptz,
    ended_at            timestamptz NOT NULL DEFAULT clock_timestamp(),
    announced_at        timestamptz,
    has_loose_ends      boolean NOT NULL DEFAULT true
) WITH (fillfactor = 80);

CREATE INDEX outcomes_unannounced ON state.turn_outcomes (ended_at) WHERE announced_at IS NULL;
CREATE INDEX outcomes_ended ON state.turn_outcomes (ended_at);

COMMENT ON COLUMN state.turn_outcomes.has_loose_ends IS
    'whether steers, questions, a tree or a budget were settled with the end';
