-- Which cards name which files (protocol §22). A trigger writes a row for each file of a new card; rows go with the
-- card, and outlast the file's own row, so that a card that copies another one is not refused for a file that has gone.
CREATE TABLE state.artifact_refs (
    project_id  text NOT NULL,
    artifact_id text NOT NULL,
    card_id     text NOT NULL,
    channel_id  text NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (project_id, artifact_id, card_id)
);

CREATE INDEX artifact_refs_card ON state.artifact_refs (card_id);
