-- Checks and triggers of the inbox that cost each of its writes less. PostgreSQL reads the stored tree of every check anew, and of the
-- condition of every trigger, in each statement that writes to the table: what is rare goes into functions, which keep their plans, and a
-- list of words is one constant. What is refused, filled and charged stays the same. One table a migration: it waits for the writers of
-- one table and holds no other.

CREATE FUNCTION state.may_be_queued(message_type text, agent_turn_id text, next_retry_at timestamptz, payload jsonb) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    RETURN message_type = 'turn' AND agent_turn_id IS NOT NULL AND next_retry_at = 'infinity'
        AND state.as_uuid(payload ->> 'profile_box_id') IS NOT NULL
        AND state.as_uuid(payload ->> 'context_box_id') IS NOT NULL
        AND state.as_uuid(payload ->> 'output_box_id') IS NOT NULL;
END $$;

ALTER TABLE state.agent_inbox
    DROP CONSTRAINT queued_turn_is_legal,
    ADD CONSTRAINT queued_turn_is_legal CHECK (
        status <> 'queued' OR state.may_be_queued(message_type, agent_turn_id, next_retry_at, payload)),
    DROP CONSTRAINT final_is_archived,
    ADD CONSTRAINT final_is_archived CHECK ((status = ANY ('{consumed,skipped,error}')) = (archived_at IS NOT NULL)),
    DROP CONSTRAINT agent_inbox_status_check,
    ADD CONSTRAINT agent_inbox_status_check CHECK (status = ANY ('{queued,pending,processing,deferred,consumed,skipped,error}'));

-- Rows that have a digest are the kernel's own turns, which lack nothing. Of the others the function looks at what is missing.
CREATE OR REPLACE FUNCTION state.fill_inbox() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF (NEW.created_at IS NULL OR NEW.next_retry_at IS NULL OR NEW.agent_turn_id IS NULL OR NEW.turn_epoch IS NULL
        OR NEW.correlation_id IS NULL OR NEW.channel_id IS NULL OR NEW.status IS NULL OR NEW.retry_count IS NULL
        OR NEW.payload IS NULL OR NEW.context_headers ->> 'traceparent' IS NULL
        OR NEW.context_headers ->> 'CG-Recursion-Depth' IS NULL
        OR (NEW.status = 'queued' AND NEW.next_retry_at <> 'infinity')
        OR (NEW.status IN ('consumed', 'skipped', 'error') AND NEW.archived_at IS NULL)) IS NOT TRUE THEN
        RETURN NEW;
    END IF;
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
    NEW.turn_epoch := coalesce(NEW.turn_epoch, state.as_epoch(NEW.payload ->> 'turn_epoch'), 0);
    NEW.correlation_id := coalesce(NEW.correlation_id, NEW.payload ->> 'tool_call_id', NEW.payload ->> 'correlation_id');
    IF NEW.status IN ('consumed', 'skipped', 'error') THEN
        NEW.archived_at := coalesce(NEW.archived_at, now());
    END IF;
    IF NEW.message_type = 'tool_result' AND NEW.turn_epoch > 0 THEN
        NEW.turn_epoch := coalesce((
            SELECT w.turn_epoch FROM state.turn_waiting_tools w, state.ledger_era e
            WHERE e.is_only AND w.tool_call_id = NEW.correlation_id AND w.project_id = NEW.project_id
              AND w.agent_turn_id = NEW.agent_turn_id AND w.turn_epoch = e.epoch_floor AND NEW.turn_epoch < e.epoch_floor), NEW.turn_epoch);
    END IF;
    RETURN NEW;
END $$;
CREATE OR REPLACE TRIGGER inbox_filled BEFORE INSERT ON state.agent_inbox FOR EACH ROW
    WHEN (NEW.request_digest IS NULL) EXECUTE FUNCTION state.fill_inbox();

-- No lease of ours leaves a row at 'infinity'.
CREATE OR REPLACE FUNCTION state.fill_lease() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.status = 'queued' AND NEW.status = 'pending' THEN
        UPDATE state.agent_state_head h SET active_inbox_id = NEW.inbox_id
        WHERE h.agent_id = NEW.agent_id AND h.project_id = NEW.project_id AND h.active_agent_turn_id = NEW.agent_turn_id
          AND h.turn_epoch = NEW.turn_epoch AND h.active_inbox_id IS NULL;
        NEW.next_retry_at := now();
    END IF;
    RETURN NEW;
END $$;
CREATE OR REPLACE TRIGGER lease_filled BEFORE UPDATE ON state.agent_inbox FOR EACH ROW
    WHEN (NEW.next_retry_at = 'infinity') EXECUTE FUNCTION state.fill_lease();

CREATE OR REPLACE FUNCTION state.charge_enqueue() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    refused jsonb;
BEGIN
    IF NEW.message_type NOT IN ('turn', 'ui_action') OR NEW.payload -> 'budget' ? 'granted' THEN
        RETURN NULL;
    END IF;
    refused := state.charge_turns(NEW.project_id, NEW.channel_id, jsonb_build_array(jsonb_build_object(
        'agent_turn_id', NEW.agent_turn_id, 'budget', NEW.payload -> 'budget')));
    IF refused IS NOT NULL THEN
        RAISE EXCEPTION 'budget exceeded' USING ERRCODE = 'TB001', DETAIL = refused::text;
    END IF;
    RETURN NULL;
END $$;
DROP TRIGGER inbox_charged ON state.agent_inbox;
CREATE CONSTRAINT TRIGGER inbox_charged AFTER INSERT ON state.agent_inbox DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (NEW.payload ? 'budget') EXECUTE FUNCTION state.charge_enqueue();
