-- Charges each turn that is enqueued with a budget (0034), at the commit. Apart from 0034, as the two that follow: each waits for one table that is
-- being written, and holds no other meanwhile.
CREATE CONSTRAINT TRIGGER inbox_charged AFTER INSERT ON state.agent_inbox DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (NEW.payload ? 'budget' AND NEW.message_type IN ('turn', 'ui_action') AND NOT NEW.payload -> 'budget' ? 'granted')
    EXECUTE FUNCTION state.charge_enqueue();
