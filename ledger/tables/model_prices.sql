-- What models cost: US dollars per million tokens, which are micro-dollars per token.
CREATE TABLE state.model_prices (
    model                    text PRIMARY KEY,
    input_per_million        numeric NOT NULL CHECK (input_per_million >= 0),
    output_per_million       numeric NOT NULL CHECK (output_per_million >= 0),
    cached_input_per_million numeric CHECK (cached_input_per_million >= 0),
    max_output_tokens        bigint,
    source                   text NOT NULL,
    updated_at               timestamptz NOT NULL DEFAULT now()
);
