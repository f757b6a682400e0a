-- Whether a turn is marked now, whatever the caller's snapshot says. The gates of turns that have no node ask it once
-- more, where the head that they wait for has changed. The gates of every step ask it: it names what it reads in full,
-- since a search path of its own cost more than the look.
CREATE OR REPLACE FUNCTION state.is_marked(turn text) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN EXISTS (SELECT FROM state.turn_nodes n WHERE n.agent_turn_id = turn AND n.stopping_at IS NOT NULL);
END $$;
