-- Schedules: whom a caller of a project asks for what, and when (protocol §20). `settings` is what the caller put
-- without `timing`, which says when; `next_at` is the next time that it names, null where none comes any more.
CREATE TABLE resource.schedules (
    project_id     text NOT NULL,
    schedule_id    text NOT NULL,
    channel_id     text NOT NULL,
    owner          text NOT NULL,
    owner_operates boolean NOT NULL DEFAULT false,
    settings       jsonb NOT NULL,
    timing         jsonb NOT NULL,
    anchor_at      timestamptz NOT NULL,
    next_at        timestamptz,
    looked_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    revision       bigint NOT NULL DEFAULT 1,
    paused_at      timestamptz,
    paused_because text,
    waker_turn_id  text,
    root_turn_id   text,
    wake           jsonb,
    created_at     timestamptz NOT NULL DEFAULT now(),
    updated_at     timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (project_id, schedule_id),
    CHECK ((paused_at IS NULL) = (paused_because IS NULL)),
    CHECK (num_nonnulls(waker_turn_id, root_turn_id, wake) IN (0, 3))
);

-- What is due, and what was moved by a clock that was set back since: see list_due_schedules.
CREATE INDEX schedules_due ON resource.schedules (next_at) WHERE paused_at IS NULL AND next_at IS NOT NULL;
CREATE INDEX schedules_looked ON resource.schedules (looked_at) WHERE paused_at IS NULL AND next_at IS NOT NULL;
-- Those that agents have put: by the turn, and by the root whose budget they use.
CREATE INDEX schedules_waker ON resource.schedules (waker_turn_id) WHERE waker_turn_id IS NOT NULL;
CREATE INDEX schedules_root ON resource.schedules (root_turn_id) WHERE root_turn_id IS NOT NULL;

COMMENT ON TABLE resource.schedules IS 'turns that are asked for at times, which the ledger fires';
COMMENT ON COLUMN resource.schedules.owner IS 'the requester of its turns: who put it last';
COMMENT ON COLUMN resource.schedules.anchor_at IS 'where every_seconds counts from: when this timing was put';
COMMENT ON COLUMN resource.schedules.looked_at IS 'when next_at was set, by the ledger''s clock';
COMMENT ON COLUMN resource.schedules.revision IS 'rises with each change but firings, which go by what they have read';
COMMENT ON COLUMN resource.schedules.paused_because IS 'paused | owner_revoked | schedule_invalid';
COMMENT ON COLUMN resource.schedules.waker_turn_id IS 'of a wake_me: the turn whose call put it';
COMMENT ON COLUMN resource.schedules.root_turn_id IS
    'of a wake_me: the turn that began the tree, whose budget all wakes below it use';
COMMENT ON COLUMN resource.schedules.wake IS 'of a wake_me: headers of its turn, and its boxes outside conversations';
