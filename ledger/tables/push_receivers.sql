-- Receivers of push notifications (protocol §17.3): who is notified when a turn changes its state, and the last
-- state sent. The state to send is read from the turn, so there is no row for each notification, and none can be lost.
CREATE TABLE state.push_receivers (
    agent_turn_id text NOT NULL,
    receiver_id   text NOT NULL,
    project_id    text NOT NULL,
    channel_id    text NOT NULL,
    url           text NOT NULL,
    token         text,  -- the receiver's secret; gone once nothing more is sent to the receiver
    created_by    text NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT now(),
    status        text NOT NULL DEFAULT 'active' CHECK (status IN ('active', 'done', 'given_up', 'removed')),
    told_state    text,  -- the last state that it has acknowledged
    state         text,  -- the state that was sent last
    number        integer NOT NULL DEFAULT 0,  -- of that state, from 1: part of the notification's id
    state_at      timestamptz,  -- when that state was found
    attempts      integer NOT NULL DEFAULT 0,
    next_at       timestamptz NOT NULL DEFAULT now(),
    last_error    text,
    PRIMARY KEY (agent_turn_id, receiver_id),
    CHECK (status = 'active' OR token IS NULL)
);

CREATE INDEX push_receivers_due ON state.push_receivers (next_at) WHERE status = 'active';
-- Those of a caller that still get notifications: see is_full.
CREATE INDEX push_receivers_open ON state.push_receivers (project_id COLLATE "C", created_by)
    WHERE status = 'active';
