-- Charges a turn that nobody's call has made, at the commit of its enqueue, which it undoes where the turn does not
-- fit.
CREATE OR REPLACE FUNCTION state.charge_enqueue() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
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

-- At the commit, so that budgets are the last rows that a transaction locks.
DROP TRIGGER IF EXISTS inbox_charged ON state.agent_inbox;
CREATE CONSTRAINT TRIGGER inbox_charged AFTER INSERT ON state.agent_inbox DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (NEW.payload ? 'budget') EXECUTE FUNCTION state.charge_enqueue();
