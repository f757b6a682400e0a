-- What may go, and how that is found without reading the past (docs/operations.md, retention).

-- The turns that name a box. What these say of a row never changes, so its updates stay heap-only.
CREATE INDEX inbox_output_box ON state.agent_inbox (lower(payload ->> 'output_box_id')) WHERE message_type IN ('turn', 'ui_action');
CREATE INDEX inbox_context_box ON state.agent_inbox (lower(payload ->> 'context_box_id')) WHERE message_type IN ('turn', 'ui_action');
CREATE INDEX inbox_profile_box ON state.agent_inbox (lower(payload ->> 'profile_box_id')) WHERE message_type IN ('turn', 'ui_action');
CREATE INDEX pointers_memory ON state.agent_state_pointers (memory_context_box_id) WHERE memory_context_box_id IS NOT NULL;
CREATE INDEX segments_box ON state.thread_segments (output_box_id) WHERE output_box_id IS NOT NULL;

CREATE VIEW state.turn_boxes AS
SELECT lower(i.payload ->> 'output_box_id') AS box_id, i.agent_turn_id FROM state.agent_inbox i WHERE i.message_type IN ('turn', 'ui_action')
UNION ALL
SELECT lower(i.payload ->> 'context_box_id'), i.agent_turn_id FROM state.agent_inbox i WHERE i.message_type IN ('turn', 'ui_action')
UNION ALL
SELECT lower(i.payload ->> 'profile_box_id'), i.agent_turn_id FROM state.agent_inbox i WHERE i.message_type IN ('turn', 'ui_action');

-- OFFSET 0 keeps each question a look-up by key for the row in hand, whatever a plan for large batches would make of it.

-- Threads that ended before a moment and owe nobody anything: every answer announced, every turn of a message over.
CREATE FUNCTION state.prunable_threads(before timestamptz) RETURNS TABLE (thread_id text, project_id text)
LANGUAGE sql STABLE AS $$
    SELECT t.thread_id, t.project_id FROM state.threads t
    WHERE t.status = 'ended' AND t.ended_at < before
      AND NOT EXISTS (SELECT FROM state.thread_replies r WHERE r.thread_id = t.thread_id AND r.announced_at IS NULL OFFSET 0)
      AND NOT EXISTS (
          SELECT FROM state.thread_messages m JOIN state.agent_inbox i ON i.correlation_id = m.message_id
              AND i.project_id = m.project_id AND i.message_type = 'turn'
          WHERE m.thread_id = t.thread_id AND NOT EXISTS (
              SELECT FROM state.turn_outcomes o WHERE o.agent_turn_id = i.agent_turn_id OFFSET 0) OFFSET 0)
$$;

-- Turns that ended before a moment, were announced, have no live inbox row, and that no thread that stays names. The last turn of
-- an agent is none: the agent's pointer stands for it.
CREATE FUNCTION state.prunable_turns(before timestamptz) RETURNS TABLE (agent_turn_id text, project_id text)
LANGUAGE sql STABLE AS $$
    SELECT o.agent_turn_id, o.project_id FROM state.turn_outcomes o
    WHERE o.ended_at < before AND o.announced_at IS NOT NULL
      AND NOT EXISTS (SELECT FROM state.agent_inbox i WHERE i.agent_turn_id = o.agent_turn_id AND i.archived_at IS NULL OFFSET 0)
      AND NOT EXISTS (
          SELECT FROM state.thread_messages m WHERE m.agent_turn_id = o.agent_turn_id
            AND NOT EXISTS (SELECT FROM state.prunable_threads(before) t WHERE t.thread_id = m.thread_id OFFSET 0) OFFSET 0)
      AND NOT EXISTS (
          SELECT FROM state.agent_state_pointers p
          WHERE p.agent_id = o.agent_id AND p.project_id = o.project_id AND p.last_output_box_id = o.output_box_id
            AND o.turn_epoch > 0 AND NOT EXISTS (
                SELECT FROM state.agent_inbox l JOIN state.turn_outcomes e ON e.agent_turn_id = l.agent_turn_id
                WHERE lower(l.payload ->> 'output_box_id') = o.output_box_id::text AND l.message_type IN ('turn', 'ui_action')
                  AND l.agent_id = o.agent_id AND l.project_id = o.project_id AND l.turn_epoch > o.turn_epoch OFFSET 0) OFFSET 0)
$$;

-- The last output box as box_replace has set it, for as long as last_output_box_id is the same. A column of its own, since no
-- turn writes it: with last_output_box_id in an index, every end of a turn would have to write there, too.
ALTER TABLE state.agent_state_pointers ADD COLUMN replaced_output_box_id uuid;
CREATE INDEX pointers_replaced ON state.agent_state_pointers (replaced_output_box_id) WHERE replaced_output_box_id IS NOT NULL;

-- Boxes that were made, and let go by a profile, before a moment, and that nothing names: no turn, head, pointer, profile, agent or
-- segment, and no outcome of a turn that wrote into it. Planned: as if what is prunable were gone already.
CREATE FUNCTION state.unused_boxes(before timestamptz, planned boolean) RETURNS TABLE (box_id uuid, project_id text)
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

-- What an export of some agents holds: the threads that a turn of theirs worked in, and the boxes that they name.
CREATE FUNCTION state.agent_threads(project text, agents text[]) RETURNS TABLE (thread_id text) LANGUAGE sql STABLE AS $$
    SELECT DISTINCT m.thread_id FROM state.agent_inbox i JOIN state.thread_messages m ON m.agent_turn_id = i.agent_turn_id
    WHERE i.project_id = project AND i.agent_id = ANY (agents)
$$;

CREATE FUNCTION state.agent_boxes(project text, agents text[]) RETURNS TABLE (box_id uuid) LANGUAGE sql STABLE AS $$
    SELECT state.as_uuid(b.box_id) FROM state.agent_inbox i JOIN state.turn_boxes b ON b.agent_turn_id = i.agent_turn_id
    WHERE i.project_id = project AND i.agent_id = ANY (agents) AND i.message_type IN ('turn', 'ui_action')
    UNION SELECT o.output_box_id FROM state.turn_outcomes o WHERE o.project_id = project AND o.agent_id = ANY (agents)
    UNION SELECT p.memory_context_box_id FROM state.agent_state_pointers p WHERE p.project_id = project AND p.agent_id = ANY (agents)
    UNION SELECT p.last_output_box_id FROM state.agent_state_pointers p WHERE p.project_id = project AND p.agent_id = ANY (agents)
    UNION SELECT a.profile_box_id FROM resource.project_agents a WHERE a.project_id = project AND a.agent_id = ANY (agents)
$$;

-- Every table that says of its rows which project they are of, and the column that says so. Rows of other tables go with these.
CREATE VIEW state.project_tables AS
SELECT format('%I.%I', n.nspname, c.relname) AS table_name, a.attname::text AS project_column, pg_relation_size(c.oid) / current_setting('block_size')::bigint AS blocks
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname IN ('project_id', 'tenant_id') AND NOT a.attisdropped
WHERE n.nspname IN ('public', 'resource', 'state') AND c.relkind = 'r';

-- The rows of a project among some blocks of a table: how many there are, or were.
CREATE FUNCTION state.count_project_rows(place regclass, project_column name, project text, first_block bigint, end_block bigint)
RETURNS bigint LANGUAGE plpgsql STABLE AS $$
DECLARE
    found bigint;
BEGIN
    EXECUTE format('SELECT count(*) FROM %s WHERE ctid >= %L::tid AND ctid < %L::tid AND %I = $1', place, format('(%s,0)', first_block),
                   format('(%s,0)', end_block), project_column) INTO found USING project;
    RETURN found;
END $$;

CREATE FUNCTION state.remove_project_rows(place regclass, project_column name, project text, first_block bigint, end_block bigint)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    removed bigint;
BEGIN
    EXECUTE format('DELETE FROM %s WHERE ctid >= %L::tid AND ctid < %L::tid AND %I = $1', place, format('(%s,0)', first_block),
                   format('(%s,0)', end_block), project_column) USING project;
    GET DIAGNOSTICS removed = ROW_COUNT;
    RETURN removed;
END $$;
