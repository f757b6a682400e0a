-- Until when a turn may last (payload.budget.until, protocol §15). It bounds the turn's questions to people, whoever
-- asks them, and the calls that people released: the turn sleeps no longer than until then.
CREATE OR REPLACE FUNCTION state.until_of_turn(turn text) RETURNS timestamptz LANGUAGE sql STABLE AS $$
    SELECT min((i.payload #>> '{budget,until}')::timestamptz) FROM state.agent_inbox i
    WHERE i.agent_turn_id = turn AND i.message_type IN ('turn', 'ui_action')
$$;
