-- As 0048, of the heads.
ALTER TABLE state.agent_state_head
    DROP CONSTRAINT agent_state_head_status_check,
    ADD CONSTRAINT agent_state_head_status_check CHECK (status = ANY ('{idle,dispatched,running,suspended}'));
