-- A question about a call, or a call that the turn's requester runs itself (reason client_tool), which its waiting row
-- names in held_by as long as nobody has decided. Opened by the commit that suspends the turn; withdrawn by the turn's
-- end. What people may see of the arguments is on the call's card.
CREATE TABLE state.interrupts (
    interrupt_id         text PRIMARY KEY,
    project_id           text NOT NULL,
    channel_id           text NOT NULL,
    agent_id             text NOT NULL,
    agent_turn_id        text NOT NULL,
    step_id              text NOT NULL,
    tool_call_id         text NOT NULL,
    tool_name            text NOT NULL,
    reason               text NOT NULL CHECK (reason IN ('tool_call', 'input_required', 'confirmation', 'client_tool')),
    message              text NOT NULL,
    action_digest        text,
    allowed_decisions    text[] NOT NULL CHECK (allowed_decisions <@ ARRAY['approve', 'edit', 'reject', 'respond']),
    response_schema      jsonb,
    on_expiry            text NOT NULL DEFAULT 'reject' CHECK (on_expiry IN ('reject', 'timeout', 'cancel')),
    requester            text,
    requester_may_decide boolean NOT NULL DEFAULT false,
    only_requester       boolean NOT NULL DEFAULT false,
    tool_pin             jsonb,
    wait_seconds         float8 NOT NULL,
    status               text NOT NULL DEFAULT 'open' CHECK (status IN ('open', 'resolved', 'expired', 'withdrawn')),
    decision             text CHECK (decision IN ('approve', 'edit', 'reject', 'respond')),
    decision_digest      text,
    decided_by           text,
    comment              text,
    tool_changed         boolean NOT NULL DEFAULT false,
    edited_digest        text,
    created_at           timestamptz NOT NULL DEFAULT now(),
    decided_at           timestamptz,
    expires_at           timestamptz NOT NULL,
    -- The tool's own name for its question; null for all others, which hold their call or ask whether it was done.
    call_key             text,
    call_digest          text,
    response             jsonb,
    CHECK ((status = 'open') = (decided_at IS NULL) AND (status = 'resolved') = (decision IS NOT NULL))
) WITH (fillfactor = 70);

-- The collation keeps these from statements that know the key.
CREATE INDEX interrupts_project ON state.interrupts (project_id COLLATE "C", created_at, interrupt_id);
CREATE INDEX interrupts_open ON state.interrupts (project_id COLLATE "C", created_at, interrupt_id)
    WHERE status = 'open';
CREATE INDEX interrupts_due ON state.interrupts (expires_at) WHERE status = 'open';
CREATE INDEX interrupts_turn ON state.interrupts (agent_turn_id);

COMMENT ON COLUMN state.interrupts.requester IS 'the principal that asked for the turn, or for the root of its tree';
COMMENT ON COLUMN state.interrupts.only_requester IS
    'a call of a tool that the requester runs (§19): nobody else answers it, but an operator may reject it';
COMMENT ON COLUMN state.interrupts.tool_pin IS
    'target_subject and parameters of the tool''s row as they were asked about; null for tools without a row';
COMMENT ON COLUMN state.interrupts.wait_seconds IS 'how long the call may take, from the decision on';
COMMENT ON COLUMN state.interrupts.decision_digest IS
    'the hash of what was decided, with its arguments or response: a repeat is the same';
COMMENT ON COLUMN state.interrupts.edited_digest IS 'with edit: the digest of the action that was sent';
COMMENT ON COLUMN state.interrupts.call_digest IS 'with call_key: the hash of the question, by which a repeat is known';
COMMENT ON COLUMN state.interrupts.response IS
    'with call_key: what a person responded, which the tool reads; of other questions the result card has it';
