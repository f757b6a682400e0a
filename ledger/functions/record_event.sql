-- Writes what webhooks get in the statement that ends a turn, asks a person or warns of a budget (protocol §17.6).
-- Where a project has no webhook, it looks once and writes nothing.
CREATE OR REPLACE FUNCTION state.record_event() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM state.webhooks w WHERE w.project_id = NEW.project_id) THEN
        RETURN NULL;
    END IF;
    CASE TG_TABLE_NAME
        WHEN 'turn_outcomes' THEN
            PERFORM state.write_event(NEW.project_id, NEW.agent_turn_id, 'turn.ended', NEW.agent_turn_id,
                jsonb_build_object('status', NEW.status, 'error_code', NEW.error_code));
            UPDATE state.webhooks w SET status = 'done'
            WHERE w.agent_turn_id = NEW.agent_turn_id AND w.project_id = NEW.project_id AND w.status = 'active';
        WHEN 'interrupts' THEN
            PERFORM state.write_event(NEW.project_id, NEW.agent_turn_id, 'interrupt.opened', NEW.interrupt_id,
                jsonb_build_object('interrupt_id', NEW.interrupt_id, 'reason', NEW.reason,
                                   'expires_at', NEW.expires_at));
        WHEN 'budgets' THEN
            PERFORM state.write_event(NEW.project_id, NEW.agent_turn_id, 'budget.warned',
                concat_ws('/', NEW.budget_id, NEW.warned_at),
                jsonb_build_object('budget_id', NEW.budget_id, 'kind', NEW.kind, 'warn_percent', NEW.warn_percent));
    END CASE;
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER end_recorded AFTER INSERT ON state.turn_outcomes
    FOR EACH ROW EXECUTE FUNCTION state.record_event();

CREATE OR REPLACE TRIGGER question_recorded AFTER INSERT ON state.interrupts
    FOR EACH ROW WHEN (NEW.status = 'open' AND NEW.reason <> 'client_tool') EXECUTE FUNCTION state.record_event();

CREATE OR REPLACE TRIGGER warning_recorded AFTER UPDATE OF warned_at ON state.budgets
    FOR EACH ROW WHEN (NEW.warned_at IS NOT NULL AND OLD.warned_at IS NULL) EXECUTE FUNCTION state.record_event();
