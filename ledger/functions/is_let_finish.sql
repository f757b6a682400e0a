-- Whether a turn is a loser that its decided batch lets finish: nobody waits for it any more. One look by key; the
-- turns of a batch that is decided while this is read may be marked or not, as if the mark had come before.
CREATE OR REPLACE FUNCTION state.is_let_finish(turn text) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM state.pmo_batch_tasks t JOIN state.pmo_batches b ON b.batch_id = t.batch_id
                   WHERE t.current_agent_turn_id = turn AND b.losers = 'finish'
                     AND b.status NOT IN ('running', 'withdrawn'))
$$;
