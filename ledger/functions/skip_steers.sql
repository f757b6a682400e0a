-- What no step has asked with by the end of its turn is skipped, whichever statement ends the turn.
CREATE OR REPLACE FUNCTION state.skip_steers() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE state.steers s SET status = 'skipped', settled_at = clock_timestamp()
    WHERE s.agent_turn_id = NEW.agent_turn_id AND s.status IN ('waiting', 'taken');
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER outcomes_skip_steers AFTER INSERT ON state.turn_outcomes FOR EACH ROW
    WHEN (NEW.has_loose_ends) EXECUTE FUNCTION state.skip_steers();
