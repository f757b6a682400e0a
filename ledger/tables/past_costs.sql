-- What the attempts of removed turns used, by day (UTC): the sums of a project's costs outlive its turns.
CREATE TABLE state.past_costs (
    project_id        text NOT NULL,
    channel_id        text NOT NULL,
    day               date NOT NULL,
    model             text NOT NULL,
    turns             bigint NOT NULL DEFAULT 0,
    attempts          bigint NOT NULL DEFAULT 0,
    failed_attempts   bigint NOT NULL DEFAULT 0,
    prompt_tokens     bigint NOT NULL DEFAULT 0,
    completion_tokens bigint NOT NULL DEFAULT 0,
    cost              numeric,
    PRIMARY KEY (project_id, day, channel_id, model)
);
