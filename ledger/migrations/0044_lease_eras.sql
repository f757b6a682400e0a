-- Leases and reports in a later era of the ledger (0043).

-- A child's lease, too, has an epoch above the floor. The function is long; this changes the one line that reads the agent's last epoch.
DO $$
DECLARE
    was text := 'coalesce(x.turn_epoch, 0) AS epoch';
    code text;
BEGIN
    SELECT pg_get_functiondef(p.oid) INTO STRICT code FROM pg_catalog.pg_proc p
    WHERE p.pronamespace = 'state'::regnamespace AND strpos(p.prosrc, was) > 0;
    EXECUTE replace(code, was, 'coalesce(greatest(x.turn_epoch, (SELECT e.epoch_floor FROM state.ledger_era e WHERE e.is_only)), 0) AS epoch');
END $$;

-- An epoch that a v1r4 writer keeps in the payload; as_count takes nine digits.
CREATE FUNCTION state.as_epoch(value text) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN value ~ '^[0-9]{1,16}$' THEN value::bigint END;

-- As before, but for epochs. A tool that was called before an era began reports under the epoch of then: the report is for the call as it
-- waits now.
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

ALTER TABLE state.ledger_era ADD COLUMN compared_era bigint NOT NULL DEFAULT 0;
COMMENT ON COLUMN state.ledger_era.compared_era IS 'the last era in which what NATS holds of the one before was compared with the ledger';
