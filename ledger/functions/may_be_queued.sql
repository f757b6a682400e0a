-- Whether a row may be queued: a lease reads of it what is looked for here. The box of a turn in a conversation is
-- resolved when the turn is leased, not when it is enqueued (protocol §6, conversations): until then its payload has
-- none, and the conversation's pointer may move. A function, since PostgreSQL reads the stored tree of every check anew
-- in each statement that writes to the table; a function keeps its plan.
CREATE OR REPLACE FUNCTION state.may_be_queued(message_type text, agent_turn_id text, next_retry_at timestamptz,
    payload jsonb) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    RETURN message_type = 'turn' AND agent_turn_id IS NOT NULL AND next_retry_at = 'infinity'
        AND state.as_uuid(payload ->> 'profile_box_id') IS NOT NULL
        AND state.as_uuid(payload ->> 'context_box_id') IS NOT NULL
        AND (state.as_uuid(payload ->> 'output_box_id') IS NOT NULL OR payload ->> 'conversation_id' IS NOT NULL);
END $$;
