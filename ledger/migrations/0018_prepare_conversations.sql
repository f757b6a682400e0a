-- What conversations (protocol §6, enqueue), trees of turns and people in the loop share. Every column has a default: bridges,
-- workers and v1r4 tools of the version before write and read beside it.

-- The box in which a conversation with an agent of a channel is kept: every turn of the conversation writes there. The conversation
-- '' is the one that a profile's memory keeps where an enqueue names none. Made by the conversation's first enqueue.
CREATE TABLE state.conversations (
    project_id      text NOT NULL,
    channel_id      text NOT NULL,
    agent_id        text NOT NULL,
    conversation_id text NOT NULL,
    output_box_id   uuid NOT NULL,
    turn_count      bigint NOT NULL DEFAULT 0,
    last_turn_id    text,
    created_at      timestamptz NOT NULL DEFAULT now(),
    updated_at      timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (agent_id, conversation_id, channel_id, project_id)
) WITH (fillfactor = 70);
CREATE UNIQUE INDEX conversations_box ON state.conversations (output_box_id);
-- For the lists that people read. Its collation keeps it from the other statements, which would use it by its project.
CREATE INDEX conversations_project ON state.conversations (project_id COLLATE "C", created_at);
COMMENT ON COLUMN state.conversations.turn_count IS 'turns enqueued so far, queued ones included';

-- What an enqueue must know of a profile: its memory, and whether it has instances. Holds the box that it was read from, since a
-- profile that the version before replaces keeps its settings and gets another box.
ALTER TABLE resource.profiles ADD COLUMN settings jsonb NOT NULL DEFAULT '{}';
-- The instances of profiles: to count those of a project, and to find unused ones.
CREATE INDEX project_agents_instances ON resource.project_agents (project_id COLLATE "C", status) WHERE metadata ? 'instance_of';

-- A node per turn that is in a tree, made by the kernel only: a child's by its enqueue, a root's by its first child. A mark is its
-- stopping_at: no step begins, no command leaves and no child is enqueued below it. Marks are here and not on heads, whose locks
-- the ends of siblings hold. What an update changes is in no index of live rows but the mark's.
CREATE TABLE state.turn_nodes (
    agent_turn_id  text PRIMARY KEY,
    project_id     text NOT NULL,
    parent_turn_id text,
    root_turn_id   text NOT NULL,
    waited         boolean NOT NULL DEFAULT false,
    stopping_at    timestamptz,
    stop_reason    text,
    stopped_by     text,
    ended          boolean NOT NULL DEFAULT false
) WITH (fillfactor = 70);
CREATE INDEX nodes_parent ON state.turn_nodes (parent_turn_id) WHERE parent_turn_id IS NOT NULL;
CREATE INDEX nodes_root ON state.turn_nodes (root_turn_id);
CREATE INDEX nodes_stopped_by ON state.turn_nodes (stopped_by) WHERE stopped_by IS NOT NULL;
CREATE INDEX nodes_stopping ON state.turn_nodes (stopping_at) WHERE stopping_at IS NOT NULL AND NOT ended;
COMMENT ON COLUMN state.turn_nodes.waited IS 'its parent waits for it: a stop of the parent reaches it';
COMMENT ON COLUMN state.turn_nodes.stopped_by IS 'who set the mark: a turn that ended, stop, deadline';

-- Null: of a call of the version before, whose card has the derived id, whose deadline is its turn's, and which nobody holds.
ALTER TABLE state.turn_waiting_tools ADD COLUMN call_card_id text, ADD COLUMN deadline timestamptz, ADD COLUMN held_by text;
COMMENT ON COLUMN state.turn_waiting_tools.call_card_id IS 'the tool.call card that counts: an edit makes a second one';
COMMENT ON COLUMN state.turn_waiting_tools.deadline IS 'of this call; the head''s resume_deadline is the earliest';
COMMENT ON COLUMN state.turn_waiting_tools.held_by IS 'what must happen before its command is sent, or instead of it';

-- Which version of the protocol a process speaks. Null: the version before, which knows no column and no inbox type of this one.
ALTER TABLE state.workers ADD COLUMN protocol_level integer;

-- What every worker and bridge that signed on lately speaks; 0 if one does not say, or no bridge has signed on: bridges do since
-- level 1, in rows of the target _bridge. A new type of inbox row is sent only where this has its level.
CREATE FUNCTION state.protocol_level(silent_seconds float8) RETURNS integer LANGUAGE sql STABLE AS $$
    SELECT coalesce(CASE WHEN bool_or(w.worker_target = '_bridge') THEN min(coalesce(w.protocol_level, 0)) END, 0)
    FROM state.workers w WHERE w.last_seen_at > now() - make_interval(secs => silent_seconds)
$$;

-- Invariant 9 as before, with its questions in order, each a look-up by key for the box in hand. A plan made for small statements
-- compared each box of a statement with each of its cards.
CREATE OR REPLACE FUNCTION state.guard_box_cards() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    doubtful uuid[];
    refused uuid;
BEGIN
    SELECT array_agg(a.box_id) INTO doubtful FROM (SELECT DISTINCT box_id FROM added) a
    WHERE NOT CASE
        WHEN EXISTS (SELECT FROM public.boxes b WHERE b.box_id = a.box_id AND b.made_by = pg_current_xact_id() OFFSET 0) THEN true
        ELSE EXISTS (SELECT FROM state.agent_state_head h WHERE h.output_box_id = a.box_id OFFSET 0) END;
    IF doubtful IS NULL THEN
        RETURN NULL;
    END IF;
    SELECT d.box_id INTO refused FROM unnest(doubtful) d (box_id)
    WHERE NOT EXISTS (
        SELECT FROM added x JOIN public.cards c ON c.card_id = x.card_id
        JOIN state.turn_outcomes o ON o.agent_turn_id = c.metadata ->> 'agent_turn_id'
        WHERE x.box_id = d.box_id AND o.output_box_id = d.box_id AND o.xmin = pg_current_xact_id()::xid OFFSET 0)
    LIMIT 1;
    IF refused IS NOT NULL THEN
        RAISE EXCEPTION 'box % is closed: cards enter only the output box of a turn in hand', refused
            USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NULL;
END $$;

-- As before, and the last turn of an instance that was made for one request goes with the instance.
CREATE OR REPLACE FUNCTION state.prunable_turns(before timestamptz) RETURNS TABLE (agent_turn_id text, project_id text)
LANGUAGE sql STABLE AS $$
    SELECT o.agent_turn_id, o.project_id FROM state.turn_outcomes o
    WHERE o.ended_at < before AND o.announced_at IS NOT NULL
      AND NOT EXISTS (SELECT FROM state.agent_inbox i WHERE i.agent_turn_id = o.agent_turn_id AND i.archived_at IS NULL OFFSET 0)
      AND NOT EXISTS (
          SELECT FROM state.thread_messages m WHERE m.agent_turn_id = o.agent_turn_id
            AND NOT EXISTS (SELECT FROM state.prunable_threads(before) t WHERE t.thread_id = m.thread_id OFFSET 0) OFFSET 0)
      AND (NOT EXISTS (
          SELECT FROM state.agent_state_pointers p
          WHERE p.agent_id = o.agent_id AND p.project_id = o.project_id AND p.last_output_box_id = o.output_box_id
            AND o.turn_epoch > 0 AND NOT EXISTS (
                SELECT FROM state.agent_inbox l JOIN state.turn_outcomes e ON e.agent_turn_id = l.agent_turn_id
                WHERE lower(l.payload ->> 'output_box_id') = o.output_box_id::text AND l.message_type IN ('turn', 'ui_action')
                  AND l.agent_id = o.agent_id AND l.project_id = o.project_id AND l.turn_epoch > o.turn_epoch OFFSET 0) OFFSET 0)
        OR EXISTS (
          SELECT FROM resource.project_agents a JOIN state.agent_state_head h ON h.agent_id = a.agent_id AND h.project_id = a.project_id
          WHERE a.agent_id = o.agent_id AND a.project_id = o.project_id AND a.metadata ->> 'agent_turn_id' = o.agent_turn_id
            AND h.queue_seq = 1 OFFSET 0))
$$;

-- Instances of profiles that have had no turn since a moment, in hand or waiting. Of one that was made for one request, and has had
-- no other: that turn, which may go.
CREATE FUNCTION state.unused_instances(before timestamptz) RETURNS TABLE (agent_id text, project_id text, only_turn_id text)
LANGUAGE sql STABLE AS $$
    SELECT a.agent_id, a.project_id, t.agent_turn_id FROM resource.project_agents a
    JOIN state.agent_state_head h ON h.agent_id = a.agent_id AND h.project_id = a.project_id
    LEFT JOIN LATERAL (
        SELECT p.agent_turn_id FROM state.prunable_turns(before) p
        WHERE p.agent_turn_id = a.metadata ->> 'agent_turn_id' AND h.queue_seq = 1 OFFSET 0) t ON true
    WHERE a.metadata ? 'instance_of' AND a.status IN ('active', 'dormant') AND h.status = 'idle' AND h.updated_at < before
      AND NOT EXISTS (SELECT FROM state.agent_inbox i
                      WHERE i.agent_id = a.agent_id AND i.project_id = a.project_id AND i.archived_at IS NULL OFFSET 0)
$$;

-- Conversations that were not used since a moment, and of which no turn is left: an enqueue that would go on has locked the row.
CREATE FUNCTION state.prunable_conversations(before timestamptz) RETURNS TABLE (output_box_id uuid, project_id text)
LANGUAGE sql STABLE AS $$
    SELECT c.output_box_id, c.project_id FROM state.conversations c
    WHERE c.updated_at < before
      AND NOT EXISTS (
          SELECT FROM state.agent_inbox i WHERE lower(i.payload ->> 'output_box_id') = c.output_box_id::text
            AND i.message_type IN ('turn', 'ui_action') AND NOT EXISTS (
                SELECT FROM state.prunable_turns(before) t WHERE t.agent_turn_id = i.agent_turn_id OFFSET 0) OFFSET 0)
$$;

-- As before, and the box of a conversation is in use as long as the conversation is there.
CREATE OR REPLACE FUNCTION state.unused_boxes(before timestamptz, planned boolean) RETURNS TABLE (box_id uuid, project_id text)
LANGUAGE sql STABLE AS $$
    SELECT b.box_id, b.tenant_id FROM public.boxes b
    WHERE b.created_at < before AND b.updated_at < before
      AND NOT EXISTS (SELECT FROM state.agent_state_head h WHERE h.output_box_id = b.box_id OFFSET 0)
      AND NOT EXISTS (SELECT FROM state.agent_state_pointers p WHERE p.memory_context_box_id = b.box_id OFFSET 0)
      AND NOT EXISTS (SELECT FROM state.agent_state_pointers p
                      WHERE p.replaced_output_box_id = b.box_id AND p.last_output_box_id = b.box_id OFFSET 0)
      AND NOT EXISTS (SELECT FROM resource.profiles p WHERE p.profile_box_id = b.box_id::text AND p.project_id = b.tenant_id OFFSET 0)
      AND NOT EXISTS (SELECT FROM resource.project_agents a WHERE a.profile_box_id = b.box_id OFFSET 0)
      AND NOT EXISTS (
          SELECT FROM state.conversations c WHERE c.output_box_id = b.box_id
            AND NOT (planned AND EXISTS (
                SELECT FROM state.prunable_conversations(before) x WHERE x.output_box_id = c.output_box_id OFFSET 0)) OFFSET 0)
      AND NOT EXISTS (
          SELECT FROM state.thread_segments s WHERE s.output_box_id = b.box_id
            AND NOT (planned AND EXISTS (SELECT FROM state.prunable_threads(before) t WHERE t.thread_id = s.thread_id OFFSET 0)) OFFSET 0)
      AND NOT EXISTS (
          SELECT FROM state.turn_boxes x WHERE x.box_id = b.box_id::text
            AND NOT (planned AND EXISTS (SELECT FROM state.prunable_turns(before) t WHERE t.agent_turn_id = x.agent_turn_id OFFSET 0)) OFFSET 0)
      AND NOT EXISTS (  -- a turn stopped in the queue may have its deliverable in a box that only its outcome names
          SELECT FROM public.box_cards p JOIN public.cards c ON c.card_id = p.card_id
          JOIN state.turn_outcomes o ON o.agent_turn_id = c.metadata ->> 'agent_turn_id' AND o.output_box_id = b.box_id
          WHERE p.box_id = b.box_id
            AND NOT (planned AND EXISTS (SELECT FROM state.prunable_turns(before) t WHERE t.agent_turn_id = o.agent_turn_id OFFSET 0)) OFFSET 0)
$$;

-- As before, with the boxes of the agents' conversations.
CREATE OR REPLACE FUNCTION state.agent_boxes(project text, agents text[]) RETURNS TABLE (box_id uuid) LANGUAGE sql STABLE AS $$
    SELECT state.as_uuid(b.box_id) FROM state.agent_inbox i JOIN state.turn_boxes b ON b.agent_turn_id = i.agent_turn_id
    WHERE i.project_id = project AND i.agent_id = ANY (agents) AND i.message_type IN ('turn', 'ui_action')
    UNION SELECT o.output_box_id FROM state.turn_outcomes o WHERE o.project_id = project AND o.agent_id = ANY (agents)
    UNION SELECT c.output_box_id FROM state.conversations c WHERE c.project_id = project AND c.agent_id = ANY (agents)
    UNION SELECT p.memory_context_box_id FROM state.agent_state_pointers p WHERE p.project_id = project AND p.agent_id = ANY (agents)
    UNION SELECT p.last_output_box_id FROM state.agent_state_pointers p WHERE p.project_id = project AND p.agent_id = ANY (agents)
    UNION SELECT a.profile_box_id FROM resource.project_agents a WHERE a.project_id = project AND a.agent_id = ANY (agents)
$$;
