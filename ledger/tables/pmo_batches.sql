-- Batches of turns that a call has asked for (protocol §6, join): what decides them, and as what they were decided.
CREATE TABLE state.pmo_batches (
    batch_id             text PRIMARY KEY,
    project_id           text NOT NULL,
    parent_agent_id      text NOT NULL,
    parent_agent_turn_id text NOT NULL,
    parent_tool_call_id  text NOT NULL,
    parent_turn_epoch    bigint NOT NULL,
    parent_channel_id    text,
    task_count           integer NOT NULL,
    status               text NOT NULL DEFAULT 'running',
    deadline_at          timestamptz,
    metadata             jsonb NOT NULL DEFAULT '{}',
    created_at           timestamptz NOT NULL DEFAULT now(),
    updated_at           timestamptz NOT NULL DEFAULT now(),
    join_mode            text NOT NULL DEFAULT 'all' CHECK (join_mode IN ('all', 'any', 'first_k', 'quorum')),
    k                    integer NOT NULL DEFAULT 1 CHECK (k >= 1),
    fail_fast            boolean NOT NULL DEFAULT false,
    losers               text NOT NULL DEFAULT 'stop' CHECK (losers IN ('stop', 'finish')),
    answer               text NOT NULL DEFAULT 'join' CHECK (answer IN ('join', 'child')),
    partial_at_deadline  boolean NOT NULL DEFAULT false,
    summary_chars        integer NOT NULL DEFAULT 500 CHECK (summary_chars >= 1),
    open_count           integer NOT NULL DEFAULT 0 CHECK (open_count >= 0),
    success_count        integer NOT NULL DEFAULT 0,
    failed_count         integer NOT NULL DEFAULT 0,
    decided_at           timestamptz,
    decided_by           text,
    call_key             text,
    call_digest          text,
    result               jsonb,
    peer_card_id         text
) WITH (fillfactor = 50);

CREATE INDEX batches_running ON state.pmo_batches (deadline_at) WHERE status = 'running';
CREATE INDEX batches_parent ON state.pmo_batches (parent_agent_turn_id);
CREATE INDEX batches_decided_by ON state.pmo_batches (decided_by) WHERE decided_by IS NOT NULL;

COMMENT ON COLUMN state.pmo_batches.open_count IS
    'tasks that are not over; with the other two counts it decides, under the lock of the row';
COMMENT ON COLUMN state.pmo_batches.decided_by IS
    'the turn whose end decided it, or the batch itself: by it the bridge finds whose doorbell to ring';
COMMENT ON COLUMN state.pmo_batches.call_key IS
    'the name that a tool gave it; null if it is the call''s own, which it holds and answers';
COMMENT ON COLUMN state.pmo_batches.call_digest IS
    'with call_key: the hash of what was asked, so that a key means one thing';
COMMENT ON COLUMN state.pmo_batches.peer_card_id IS
    'the tool.call card, if a program of v1r4 made the call: it has no waiting row';
COMMENT ON COLUMN state.pmo_batches.result IS
    'with call_key: what it was decided as, for the tool; null while it runs and if it was withdrawn';
