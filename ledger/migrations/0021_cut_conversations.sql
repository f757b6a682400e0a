-- Where reading of a conversation begins: a compaction has cut off what was said up to here (protocol §7.3). The box keeps it all.
ALTER TABLE state.conversations ADD COLUMN cut_position bigint NOT NULL DEFAULT 0;
