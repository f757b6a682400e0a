-- What a running deletion has found: turns, threads, boxes that its turns wrote, boxes that they only read (context),
-- conversations (agent/channel/conversation), agents, and files that its cards name. A turn stays noted until the
-- deletion is done, so that what descends from it is found after it was removed, too.
CREATE TABLE state.deletion_items (
    deletion_id text NOT NULL REFERENCES state.deletions (deletion_id) ON DELETE CASCADE,
    project_id  text NOT NULL,
    kind        text NOT NULL CHECK (kind IN ('turn', 'thread', 'box', 'context', 'conversation', 'agent', 'file')),
    item_id     text NOT NULL,
    is_gone     boolean NOT NULL DEFAULT false,
    PRIMARY KEY (deletion_id, kind, item_id)
);

CREATE INDEX deletion_items_turn ON state.deletion_items (item_id) WHERE kind = 'turn';

COMMENT ON COLUMN state.deletion_items.is_gone IS 'nothing is left to do for it: it was removed, or others need it';
