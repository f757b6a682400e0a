-- The inbox of agents: turns, and what is reported, stopped, steered or decided about them (protocol §4.4).
CREATE TABLE state.agent_inbox (
    inbox_id         text PRIMARY KEY,
    project_id       text NOT NULL,
    agent_id         text NOT NULL,
    channel_id       text NOT NULL DEFAULT 'public',
    message_type     text NOT NULL,
    enqueue_mode     text,
    correlation_id   text,
    agent_turn_id    text,
    turn_epoch       bigint,
    context_headers  jsonb NOT NULL DEFAULT '{}',
    payload          jsonb NOT NULL DEFAULT '{}',
    status           text NOT NULL DEFAULT 'pending'
                     CHECK (status = ANY (  -- one constant, which each write reads faster than IN
                        '{queued,pending,processing,deferred,consumed,skipped,error}')),
    retry_count      integer NOT NULL DEFAULT 0,
    next_retry_at    timestamptz NOT NULL,
    last_error       text,
    defer_reason     text,
    processed_at     timestamptz,
    archived_at      timestamptz,
    created_at       timestamptz NOT NULL,
    request_digest   text,
    conversation_seq bigint NOT NULL DEFAULT 0,
    -- Leases read these of a queued row, so a row without them never enters the queue.
    CONSTRAINT queued_turn_is_legal CHECK (
        status <> 'queued' OR state.may_be_queued(message_type, agent_turn_id, next_retry_at, payload)),
    CONSTRAINT final_is_archived CHECK ((status = ANY ('{consumed,skipped,error}')) = (archived_at IS NOT NULL))
) WITH (fillfactor = 80);

CREATE UNIQUE INDEX inbox_correlation ON state.agent_inbox (correlation_id, project_id, message_type);
-- No status in an index or predicate: it changes often, and these updates stay heap-only. Live rows only, so both stay
-- small: claim and next-queued (queued rows wait at 'infinity') use the first, the watchdog the second.
CREATE INDEX inbox_live ON state.agent_inbox (agent_id, project_id, next_retry_at, created_at)
    WHERE archived_at IS NULL;
CREATE INDEX inbox_turn ON state.agent_inbox (agent_turn_id);
-- For the lists that people read. Its collation keeps it from the other statements, which would use it by its project.
CREATE INDEX inbox_created ON state.agent_inbox (project_id COLLATE "C", created_at);
-- The turns that name a box. What these say of a row never changes, so its updates stay heap-only.
CREATE INDEX inbox_output_box ON state.agent_inbox (lower(payload ->> 'output_box_id'))
    WHERE message_type IN ('turn', 'ui_action');
CREATE INDEX inbox_context_box ON state.agent_inbox (lower(payload ->> 'context_box_id'))
    WHERE message_type IN ('turn', 'ui_action');
CREATE INDEX inbox_profile_box ON state.agent_inbox (lower(payload ->> 'profile_box_id'))
    WHERE message_type IN ('turn', 'ui_action');
-- A correlation is one request's, be it for a turn or for a UI action: two at one moment, for two agents, could both
-- get in. Rows that strangers write have no digest and stay under their own rule. What it indexes never changes, so
-- updates stay heap-only.
CREATE UNIQUE INDEX inbox_request ON state.agent_inbox (correlation_id, project_id)
    WHERE message_type IN ('turn', 'ui_action') AND request_digest IS NOT NULL;
CREATE INDEX inbox_due ON state.agent_inbox (next_retry_at) WHERE archived_at IS NULL AND inbox_id >= '';
CREATE INDEX inbox_project_live ON state.agent_inbox (project_id COLLATE "C", next_retry_at)
    WHERE archived_at IS NULL AND inbox_id >= '';
-- The turns that run another one again (protocol §6, rerun), by the turn that they name. No update of a row changes
-- what is indexed.
CREATE INDEX inbox_reruns ON state.agent_inbox ((payload -> 'rerun' ->> 'of')) WHERE payload ? 'rerun';
-- Inbox rows that were given up, for people. What the predicate reads is set once, by the update that archives the row.
CREATE INDEX inbox_dead ON state.agent_inbox (project_id COLLATE "C", created_at, inbox_id)
    WHERE last_error IN ('protocol_violation', 'resume_retry_exhausted');
-- Lists of turns and conversations narrowed to an agent, a channel or a conversation: each enters an index of its own,
-- in the order of its pages. Without them a list of a rare agent read all turns of its project, and held a connection
-- of everybody meanwhile. Their conditions on ids, which every row meets, keep statements off them that have better
-- ones and do not name these conditions.
CREATE INDEX inbox_agent_turns ON state.agent_inbox (project_id COLLATE "C", agent_id COLLATE "C", created_at,
    agent_turn_id)
    WHERE message_type IN ('turn', 'ui_action') AND agent_turn_id >= '';
-- Of an agent in one channel: by either index alone, an agent with many turns and few of them there is read whole.
CREATE INDEX inbox_agent_channel_turns ON state.agent_inbox (project_id COLLATE "C", agent_id COLLATE "C",
    channel_id COLLATE "C", created_at, agent_turn_id)
    WHERE message_type IN ('turn', 'ui_action') AND agent_turn_id >= '';
CREATE INDEX inbox_channel_turns ON state.agent_inbox (project_id COLLATE "C", channel_id COLLATE "C", created_at,
    agent_turn_id)
    WHERE message_type IN ('turn', 'ui_action') AND agent_turn_id >= '';
CREATE INDEX inbox_conversation_turns ON state.agent_inbox (project_id COLLATE "C",
    (payload ->> 'conversation_id') COLLATE "C", created_at, agent_turn_id)
    WHERE message_type IN ('turn', 'ui_action') AND agent_turn_id >= '' AND (payload ->> 'conversation_id') IS NOT NULL;
-- The turns of an end user, as a list is narrowed to them and as a deletion finds them.
CREATE INDEX inbox_end_user_turns ON state.agent_inbox (project_id COLLATE "C", (payload ->> 'end_user') COLLATE "C",
    created_at, agent_turn_id)
    WHERE message_type IN ('turn', 'ui_action') AND agent_turn_id >= '' AND (payload ->> 'end_user') IS NOT NULL;
-- The turns that other turns asked for, by the turn that asked.
CREATE INDEX inbox_parents ON state.agent_inbox ((context_headers ->> 'CG-Parent-Turn-Id'))
    WHERE message_type IN ('turn', 'ui_action') AND context_headers ? 'CG-Parent-Turn-Id';
CREATE INDEX inbox_conversation_seq ON state.agent_inbox (agent_id, (payload ->> 'conversation_id'), conversation_seq)
    WHERE payload ->> 'conversation_id' IS NOT NULL;

COMMENT ON COLUMN state.agent_inbox.payload IS
    'pointers and settings; of a turn runtime_config.card_id names the card with the text of its settings';
COMMENT ON COLUMN state.agent_inbox.conversation_seq IS 'the place of a turn among those of its conversation';
