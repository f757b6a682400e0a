-- A conversation by its name, of any agent and channel of a project, as people ask for it (protocol §14.1). No column of it ever
-- changes, so that counting a conversation's turns writes no index. Its collation keeps it from the statements that know the agent.
CREATE INDEX conversations_name ON state.conversations (project_id COLLATE "C", conversation_id COLLATE "C");
