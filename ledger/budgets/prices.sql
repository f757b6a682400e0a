-- Prices of models (protocol §15): from the list that is installed, and from the configuration, which goes before it.

-- name: price_sources :many
-- Where the stored prices come from, with how many of each; and the models that the configuration has priced.
SELECT p.source, count(*) AS prices,
       coalesce(array_agg(p.model ORDER BY p.model) FILTER (WHERE p.source = :configuration::text), '{}') AS models
FROM state.model_prices p GROUP BY p.source ORDER BY p.source;

-- name: has_price :one
-- Whether the model has a price.
SELECT EXISTS (SELECT FROM state.model_prices p WHERE p.model = :model) AS known;

-- name: store_prices :one
-- Stores prices, and changes those that differ; returns how many it wrote.
WITH written AS (
    INSERT INTO state.model_prices AS p (model, input_per_million, output_per_million, cached_input_per_million,
                                         max_output_tokens, source)
    SELECT x.model, x.input, x.output, x.cached, x.most, :source
    FROM unnest(:models::text[], :inputs::numeric[], :outputs::numeric[], :cached::numeric[],
                :most::bigint[]) x (model, input, output, cached, most)
    ORDER BY x.model
    ON CONFLICT (model) DO UPDATE SET input_per_million = EXCLUDED.input_per_million,
                                      output_per_million = EXCLUDED.output_per_million,
        cached_input_per_million = EXCLUDED.cached_input_per_million, max_output_tokens = EXCLUDED.max_output_tokens,
        source = EXCLUDED.source, updated_at = now()
    WHERE (p.input_per_million, p.output_per_million, p.cached_input_per_million, p.max_output_tokens, p.source)
          IS DISTINCT FROM (EXCLUDED.input_per_million, EXCLUDED.output_per_million, EXCLUDED.cached_input_per_million,
                            EXCLUDED.max_output_tokens, EXCLUDED.source)
    RETURNING 1
)
SELECT count(*) AS written FROM written;

-- name: drop_prices :one
-- Removes the prices that the configuration had and has no more, and those of other versions of the list; returns how
-- many.
WITH gone AS (
    DELETE FROM state.model_prices p
    WHERE (p.source = :configuration::text AND p.model <> ALL (:configured::text[]))
       OR (p.source <> :list::text AND starts_with(p.source, split_part(:list::text, ' ', 1) || ' '))
    RETURNING 1
)
SELECT count(*) AS gone FROM gone;
