-- Charges the children of a turn that are being enqueued: the last thing that a transaction does, since it locks
-- budgets. If others took meanwhile what judge_children saw, the transaction fails as one that conflicts with another,
-- and is repeated.
CREATE OR REPLACE FUNCTION state.grant_children(project text, channel text, plans jsonb) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF jsonb_array_length(plans) > 0 AND state.charge_turns(project, channel, plans) IS NOT NULL THEN
        RAISE EXCEPTION 'a budget has changed meanwhile' USING ERRCODE = 'serialization_failure';
    END IF;
END $$;
