-- What CommonGround v1r4's tools, UI worker, observers and reports write and read, in the form in which they do (protocol §10.12).

-- Their edges are inserted with ON CONFLICT (project_id, md5(correlation_id), primitive, edge_phase). A second unique index on the
-- plain columns would raise where that clause names this one, so there is one, and our statements ask for the md5, too.
DROP INDEX state.edges_correlation;
CREATE UNIQUE INDEX edges_correlation ON state.execution_edges (md5(correlation_id), project_id, primitive, edge_phase);

-- Their steps are inserted with ON CONFLICT (project_id, agent_id, step_id). A turn is one agent's, so step_id still fences.
ALTER TABLE state.agent_steps DROP CONSTRAINT agent_steps_pkey, ADD PRIMARY KEY (step_id, project_id, agent_id),
    DROP CONSTRAINT agent_steps_status_check,
    ADD CONSTRAINT agent_steps_status_check CHECK (status IN ('running', 'tool_dispatched', 'completed', 'failed', 'canceled'));

-- Their UI worker leases first and looks for boxes after. A turn of ours names its inbox row, and has its boxes from the lease on.
ALTER TABLE state.agent_state_head DROP CONSTRAINT idle_holds_nothing, ADD CONSTRAINT idle_holds_nothing CHECK (
    CASE WHEN status = 'idle'
         THEN active_agent_turn_id IS NULL AND context_box_id IS NULL AND output_box_id IS NULL
         ELSE active_agent_turn_id IS NOT NULL
              AND (active_inbox_id IS NULL OR (context_box_id IS NOT NULL AND output_box_id IS NOT NULL))
    END);

-- Before each lease they insert an idle head that names the turn's boxes, which is checked even where the head is there.
CREATE FUNCTION state.empty_idle_head() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.context_box_id := NULL;
    NEW.output_box_id := NULL;
    RETURN NEW;
END $$;
CREATE TRIGGER idle_head_emptied BEFORE INSERT ON state.agent_state_head FOR EACH ROW
    WHEN (NEW.status = 'idle' AND (NEW.context_box_id IS NOT NULL OR NEW.output_box_id IS NOT NULL))
    EXECUTE FUNCTION state.empty_idle_head();

-- They queue a turn as due at once, and their command anchors are consumed but not archived.
CREATE OR REPLACE FUNCTION state.fill_inbox() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.channel_id := coalesce(NEW.channel_id, 'public');
    NEW.status := coalesce(NEW.status, 'pending');
    NEW.retry_count := coalesce(NEW.retry_count, 0);
    NEW.payload := coalesce(NEW.payload, '{}');
    NEW.context_headers := jsonb_build_object(
        'CG-Recursion-Depth', '0',
        'traceparent', format('00-%s-%s-01', replace(gen_random_uuid()::text, '-', ''),
                              left(replace(gen_random_uuid()::text, '-', ''), 16))
    ) || coalesce(jsonb_strip_nulls(NEW.context_headers), '{}');
    NEW.created_at := coalesce(NEW.created_at, clock_timestamp());
    NEW.next_retry_at := CASE WHEN NEW.status = 'queued' THEN 'infinity' ELSE coalesce(NEW.next_retry_at, now()) END;
    NEW.agent_turn_id := coalesce(NEW.agent_turn_id, NEW.payload ->> 'agent_turn_id');
    NEW.turn_epoch := coalesce(NEW.turn_epoch, state.as_count(NEW.payload ->> 'turn_epoch'), 0);
    NEW.correlation_id := coalesce(NEW.correlation_id, NEW.payload ->> 'tool_call_id', NEW.payload ->> 'correlation_id');
    IF NEW.status IN ('consumed', 'skipped', 'error') THEN
        NEW.archived_at := coalesce(NEW.archived_at, now());
    END IF;
    RETURN NEW;
END $$;
CREATE OR REPLACE TRIGGER inbox_filled BEFORE INSERT ON state.agent_inbox FOR EACH ROW
    WHEN (NEW.created_at IS NULL OR NEW.next_retry_at IS NULL OR NEW.agent_turn_id IS NULL OR NEW.turn_epoch IS NULL
          OR NEW.correlation_id IS NULL OR NEW.channel_id IS NULL OR NEW.status IS NULL OR NEW.retry_count IS NULL
          OR NEW.payload IS NULL OR NEW.context_headers ->> 'traceparent' IS NULL
          OR NEW.context_headers ->> 'CG-Recursion-Depth' IS NULL
          OR (NEW.status = 'queued' AND NEW.next_retry_at <> 'infinity')
          OR (NEW.status IN ('consumed', 'skipped', 'error') AND NEW.archived_at IS NULL))
    EXECUTE FUNCTION state.fill_inbox();

-- Their lease makes a queued row pending, and knows neither a retry clock nor active_inbox_id.
CREATE FUNCTION state.fill_lease() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE state.agent_state_head h SET active_inbox_id = NEW.inbox_id
    WHERE h.agent_id = NEW.agent_id AND h.project_id = NEW.project_id AND h.active_agent_turn_id = NEW.agent_turn_id
      AND h.turn_epoch = NEW.turn_epoch AND h.active_inbox_id IS NULL;
    NEW.next_retry_at := now();
    RETURN NEW;
END $$;
CREATE TRIGGER lease_filled BEFORE UPDATE ON state.agent_inbox FOR EACH ROW
    WHEN (OLD.status = 'queued' AND NEW.status = 'pending' AND NEW.next_retry_at = 'infinity')
    EXECUTE FUNCTION state.fill_lease();

-- Their reader takes a card's time from its metadata, and the present where it finds none.
CREATE FUNCTION state.date_card() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.metadata := NEW.metadata || jsonb_build_object('created_at', NEW.created_at);
    RETURN NEW;
END $$;
CREATE TRIGGER cards_dated BEFORE INSERT ON public.cards FOR EACH ROW
    WHEN (NEW.metadata ->> 'created_at' IS NULL) EXECUTE FUNCTION state.date_card();

-- after_execution of a result that does not say: their reader refuses a card without one.
CREATE FUNCTION state.after_execution_of(project text, tool text) RETURNS text LANGUAGE sql STABLE
RETURN CASE (SELECT t.after_execution FROM resource.tools t WHERE t.project_id = project AND t.tool_name = tool)
       WHEN 'terminate' THEN 'terminate' ELSE 'suspend' END;

-- Who may have written a result: a service or the system, and no agent (protocol §6, report).
CREATE FUNCTION state.is_service(author text) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN coalesce(author = 'system' OR starts_with(author, 'tool.') OR starts_with(author, 'sys.'), false);

-- Boxes as their card store keeps them, to read and to write. A box only grows, and invariant 9 holds for what enters it.
DROP VIEW public.card_boxes;
CREATE VIEW public.card_boxes AS
SELECT b.box_id, b.tenant_id,
       (SELECT coalesce(jsonb_agg(c.card_id ORDER BY c.position), '[]') FROM public.box_cards c WHERE c.box_id = b.box_id) AS card_ids,
       to_jsonb(b.parent_ids) AS parent_ids, b.updated_at
FROM public.boxes b;

CREATE FUNCTION state.write_card_box() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    known integer := 0;
    held bigint;
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO public.boxes (box_id, tenant_id, parent_ids)
        SELECT NEW.box_id, NEW.tenant_id, ARRAY(SELECT p.id::uuid FROM jsonb_array_elements_text(coalesce(NEW.parent_ids, '[]')) p (id));
    ELSE
        known := jsonb_array_length(OLD.card_ids);
        IF NEW.box_id <> OLD.box_id OR NEW.tenant_id <> OLD.tenant_id OR OLD.card_ids <> (
            SELECT coalesce(jsonb_agg(n.id ORDER BY n.position), '[]')
            FROM jsonb_array_elements(NEW.card_ids) WITH ORDINALITY n (id, position) WHERE n.position <= known) THEN
            RAISE EXCEPTION 'box % only grows: its cards stay, in their order', OLD.box_id USING ERRCODE = 'restrict_violation';
        END IF;
        PERFORM FROM state.agent_state_head h WHERE h.output_box_id = OLD.box_id FOR NO KEY UPDATE;
        UPDATE public.boxes b SET updated_at = clock_timestamp() WHERE b.box_id = OLD.box_id;
    END IF;
    SELECT coalesce(max(c.position), 0) INTO held FROM public.box_cards c WHERE c.box_id = NEW.box_id;
    INSERT INTO public.box_cards (box_id, position, card_id)
    SELECT NEW.box_id, held + n.position - known, n.id
    FROM jsonb_array_elements_text(coalesce(NEW.card_ids, '[]')) WITH ORDINALITY n (id, position) WHERE n.position > known;
    UPDATE state.agent_state_head h SET output_position = held + jsonb_array_length(NEW.card_ids) - known  -- a turn of ours looks anew
    WHERE h.output_box_id = NEW.box_id AND h.active_inbox_id IS NOT NULL;
    RETURN NEW;
END $$;
CREATE TRIGGER card_boxes_written INSTEAD OF INSERT OR UPDATE ON public.card_boxes
    FOR EACH ROW EXECUTE FUNCTION state.write_card_box();

-- Projects as their API lists them. Where a database has their own table, it stays.
DO $$ BEGIN
    IF to_regclass('public.projects') IS NULL THEN
        CREATE VIEW public.projects AS
        SELECT p.project_id, p.project_id AS title, 'active' AS status, 'turnstile' AS owner_id,
               min(p.since) AS created_at, max(p.since) AS updated_at
        FROM (SELECT project_id, updated_at AS since FROM resource.profiles
              UNION ALL SELECT project_id, created_at FROM resource.project_agents) p
        GROUP BY p.project_id;
    END IF;
END $$;
