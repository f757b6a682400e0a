-- What every end of a turn owes, in the transaction that writes the outcome, whichever statement that is: its task is
-- settled, the batch decided if that was the one, the node closed with all that waits below it, and nobody is asked any
-- more for a turn that is over.
CREATE OR REPLACE FUNCTION state.settle_end() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    task record;
    b state.pmo_batches;
    verdict text;
    losers text[] := '{}';
BEGIN
    UPDATE state.interrupts x SET status = 'withdrawn', decided_at = clock_timestamp()
    WHERE x.agent_turn_id = NEW.agent_turn_id AND x.status = 'open';
    IF NOT EXISTS (SELECT FROM state.turn_nodes n WHERE n.agent_turn_id = NEW.agent_turn_id) THEN
        -- in no tree. A node cannot be in flight: who makes the first one of a turn holds the agent's head
        RETURN NULL;
    END IF;
    SELECT t.batch_task_id, t.batch_id INTO task FROM state.pmo_batch_tasks t
    WHERE t.current_agent_turn_id = NEW.agent_turn_id;
    IF FOUND THEN
        -- The row is the mutex, and its counts are exact: an update reads the newest version of the row that it waited
        -- for.
        UPDATE state.pmo_batches x SET open_count = x.open_count - 1, updated_at = now(),
               success_count = x.success_count + (NEW.status = 'success')::int,
               failed_count = x.failed_count + (NEW.status NOT IN ('success', 'partial'))::int
        WHERE x.batch_id = task.batch_id RETURNING x.* INTO b;
        UPDATE state.pmo_batch_tasks t SET status = NEW.status, output_box_id = NEW.output_box_id,
               error_code = NEW.error_code,
               deliverable_card_id = NEW.deliverable_card_id, updated_at = now()
        WHERE t.batch_task_id = task.batch_task_id;
        IF b.status = 'running' THEN
            verdict := state.verdict_of(b);
            IF verdict IS NOT NULL THEN
                losers := state.decide(b.batch_id, verdict, NEW.agent_turn_id,
                    CASE b.losers WHEN 'stop' THEN 'canceled' ELSE 'running' END);
            END IF;
        END IF;
    END IF;
    -- Nodes come last, in one pass: the losers, its own, and what waits below them.
    PERFORM state.mark_subtrees(losers || NEW.agent_turn_id,
                                CASE WHEN losers = '{}' THEN 'parent_ended' ELSE 'batch_decided' END, NEW.agent_turn_id,
                                false, NEW.agent_turn_id);
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER outcomes_settle AFTER INSERT ON state.turn_outcomes FOR EACH ROW
    WHEN (NEW.has_loose_ends) EXECUTE FUNCTION state.settle_end();
