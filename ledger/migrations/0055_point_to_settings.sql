-- The text of a turn's settings (instructions, choices) is on a card of its context box, which the row names (protocol §4.4). Rows from
-- before this migration keep theirs, and are read as ever: the audit looks at later ones.
COMMENT ON COLUMN state.agent_inbox.payload IS 'pointers and settings; of a turn runtime_config.card_id names the card with the text of its settings';
