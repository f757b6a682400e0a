-- A listener's place in a chain; what its handler sees as thread_id is segment_id. lineage holds the ids from the top
-- to it.
CREATE TABLE state.thread_segments (
    segment_id     text PRIMARY KEY,
    thread_id      text NOT NULL REFERENCES state.threads ON DELETE CASCADE,
    parent_id      text,
    lineage        text[] NOT NULL,
    listener       text NOT NULL,
    status         text NOT NULL DEFAULT 'live' CHECK (status IN ('live', 'pruned')),
    output_box_id  uuid,
    caller_turn_id text,
    created_at     timestamptz NOT NULL DEFAULT now(),
    ended_at       timestamptz
) WITH (fillfactor = 70);

CREATE INDEX segments_thread ON state.thread_segments (thread_id, status);
CREATE INDEX segments_box ON state.thread_segments (output_box_id) WHERE output_box_id IS NOT NULL;

COMMENT ON COLUMN state.thread_segments.output_box_id IS 'the memory of a roster agent in this segment';
COMMENT ON COLUMN state.thread_segments.caller_turn_id IS
    'the turn of the nearest agent above that opened it: the parent of turns here';
