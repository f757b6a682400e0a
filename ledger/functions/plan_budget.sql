-- payload.budget of a turn: for each dimension the rows that are charged for it, and `until`; null where nothing limits
-- it. own: max_tokens, max_cost, max_turns, max_seconds, warn_percent, each of which may be absent; parent:
-- payload.budget of the turn that asks, if it has one. `grant` is what the turn's own row shall be, and from where it
-- is taken. It reads nothing but the clock where there is a parent's.
CREATE OR REPLACE FUNCTION state.plan_budget(project text, turn text, own jsonb, parent jsonb) RETURNS jsonb
LANGUAGE plpgsql STABLE AS $$
DECLARE
    above jsonb := coalesce(nullif(parent, 'null') - 'grant' - 'granted', state.plan_of_project(project));
    until timestamptz := (above ->> 'until')::timestamptz;
    mine jsonb := to_jsonb(ARRAY[turn]);
    nothing CONSTANT jsonb := '[]';
BEGIN
    IF coalesce(own ->> 'max_tokens', own ->> 'max_cost', own ->> 'max_turns', own ->> 'max_seconds') IS NULL THEN
        RETURN above;
    END IF;
    until := least(until, now() + make_interval(secs => (own ->> 'max_seconds')::float8));
    RETURN jsonb_build_object(
        'tokens', CASE WHEN own ->> 'max_tokens' IS NOT NULL THEN mine ELSE coalesce(above -> 'tokens', nothing) END,
        'cost', CASE WHEN own ->> 'max_cost' IS NOT NULL THEN mine ELSE coalesce(above -> 'cost', nothing) END,
        'turns', CASE WHEN own ->> 'max_turns' IS NOT NULL THEN mine ELSE coalesce(above -> 'turns', nothing) END,
        'until', until, 'depth', coalesce((above ->> 'depth')::int, 1) + 1,
        'grant', jsonb_strip_nulls(jsonb_build_object(
            'max_tokens', own -> 'max_tokens', 'max_cost', own -> 'max_cost', 'max_turns', own -> 'max_turns',
            'warn_percent', own -> 'warn_percent')) || jsonb_build_object('from', jsonb_build_object(
                'tokens', coalesce(above -> 'tokens', nothing), 'cost', coalesce(above -> 'cost', nothing),
                'turns', coalesce(above -> 'turns', nothing))));
END $$;
