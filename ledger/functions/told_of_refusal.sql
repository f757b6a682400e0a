-- A refusal of a budget as models read it: money in dollars.
CREATE OR REPLACE FUNCTION state.told_of_refusal(refusal jsonb) RETURNS jsonb LANGUAGE sql IMMUTABLE
RETURN jsonb_build_object('dimension', CASE refusal ->> 'dimension' WHEN 'cost' THEN 'cost_usd'
    ELSE refusal ->> 'dimension' END) || (
    SELECT coalesce(jsonb_object_agg(x.key, CASE WHEN refusal ->> 'dimension' = 'cost'
        THEN to_jsonb(trim_scale(x.value::text::numeric / 1000000)) ELSE x.value END), '{}')
    FROM jsonb_each(refusal) x WHERE x.key IN ('had', 'spent', 'reserved', 'asked', 'left')
        AND jsonb_typeof(x.value) = 'number');
