-- Budgets (protocol §15): who may spend how much, what is reserved and what was spent. Tokens, cost (whole micro-dollars), turns; a time is a
-- moment in the payload of the turn's inbox row (payload.budget), which says for each dimension at which rows the turn is charged.
--
-- Lock order, which extends those of 0024 and 0029: budgets are last of all, deeper rows before those that their grants came from (depth, then id).
-- The triggers (0037 to 0039) are deferred to the commit, so that they are last whatever their transaction does. The rows of budget_reservations are
-- behind the head of their agent.

-- A row is a turn's own grant, or what a project may spend in a day or month. A dimension without a max is not this row's: turns below are
-- charged elsewhere. from_*: the rows that the grant of that dimension was taken from; none: from nobody.
CREATE TABLE state.budgets (
    budget_id        text PRIMARY KEY,
    project_id       text NOT NULL,
    channel_id       text,
    kind             text NOT NULL CHECK (kind IN ('turn', 'day', 'month')),
    agent_turn_id    text,
    depth            integer NOT NULL,
    max_tokens       bigint CHECK (max_tokens >= 0),
    max_cost         bigint CHECK (max_cost >= 0),
    max_turns        bigint CHECK (max_turns >= 0),
    spent_tokens     bigint NOT NULL DEFAULT 0 CHECK (spent_tokens >= 0),
    spent_cost       bigint NOT NULL DEFAULT 0 CHECK (spent_cost >= 0),
    spent_turns      bigint NOT NULL DEFAULT 0 CHECK (spent_turns >= 0),
    reserved_tokens  bigint NOT NULL DEFAULT 0 CHECK (reserved_tokens >= 0),
    reserved_cost    bigint NOT NULL DEFAULT 0 CHECK (reserved_cost >= 0),
    reserved_turns   bigint NOT NULL DEFAULT 0 CHECK (reserved_turns >= 0),
    unsettled_tokens bigint NOT NULL DEFAULT 0 CHECK (unsettled_tokens >= 0),
    unsettled_cost   bigint NOT NULL DEFAULT 0 CHECK (unsettled_cost >= 0),
    beyond_tokens    bigint NOT NULL DEFAULT 0 CHECK (beyond_tokens >= 0),
    beyond_cost      bigint NOT NULL DEFAULT 0 CHECK (beyond_cost >= 0),
    past_tokens      bigint NOT NULL DEFAULT 0,
    past_cost        bigint NOT NULL DEFAULT 0,
    past_turns       bigint NOT NULL DEFAULT 0,
    from_tokens      text[] NOT NULL DEFAULT '{}',
    from_cost        text[] NOT NULL DEFAULT '{}',
    from_turns       text[] NOT NULL DEFAULT '{}',
    until            timestamptz,
    warn_percent     integer NOT NULL DEFAULT 80 CHECK (warn_percent BETWEEN 1 AND 100),
    warned_at        timestamptz,
    lowered_at       timestamptz,
    ended_at         timestamptz,
    closed_at        timestamptz,
    created_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_by       text,
    raised_with      text,
    returned_tokens  bigint NOT NULL GENERATED ALWAYS AS (CASE WHEN closed_at IS NULL THEN 0 ELSE greatest(max_tokens - spent_tokens - reserved_tokens, 0) END) STORED,
    returned_cost    bigint NOT NULL GENERATED ALWAYS AS (CASE WHEN closed_at IS NULL THEN 0 ELSE greatest(max_cost - spent_cost - reserved_cost, 0) END) STORED,
    returned_turns   bigint NOT NULL GENERATED ALWAYS AS (CASE WHEN closed_at IS NULL THEN 0 ELSE greatest(max_turns - spent_turns - reserved_turns, 0) END) STORED,
    CONSTRAINT budget_is_of_a_turn CHECK ((kind = 'turn') = (agent_turn_id IS NOT NULL)),
    CONSTRAINT closed_has_ended CHECK (closed_at IS NULL OR ended_at IS NOT NULL)
) WITH (fillfactor = 50);
-- For the lists that people read; the collation keeps it from statements that know the key.
CREATE INDEX budgets_project ON state.budgets (project_id COLLATE "C", created_at, budget_id);
COMMENT ON COLUMN state.budgets.depth IS 'month 0, day 1, a turn''s one more than that of the row nearest above it: the order of locks';
COMMENT ON COLUMN state.budgets.spent_tokens IS 'of its own charges and of the closed grants below';
COMMENT ON COLUMN state.budgets.reserved_tokens IS 'open reservations, and the whole of each grant below that is not closed';
COMMENT ON COLUMN state.budgets.unsettled_tokens IS 'the part of spent that was booked whole, since nobody knows what was used';
COMMENT ON COLUMN state.budgets.beyond_tokens IS 'the part of spent that reservations did not cover: a provider took more than was asked';
COMMENT ON COLUMN state.budgets.returned_tokens IS 'of a closed row: what is neither spent nor reserved, and went back where it came from';
COMMENT ON COLUMN state.budgets.past_tokens IS 'the part of spent whose turns were removed since: the other rows that say so are gone';
COMMENT ON COLUMN state.budgets.warned_at IS 'when warn_percent of a limit was passed: it is told once';
COMMENT ON COLUMN state.budgets.raised_with IS 'the request that raised it last: heard again, it changes nothing';
COMMENT ON COLUMN state.budgets.lowered_at IS 'of a project''s row: when it was set below what was spent and reserved; nothing is given until that is less';
COMMENT ON COLUMN state.budgets.ended_at IS 'its turn is over; it closes when nothing of it is reserved any more';

-- What a model request may use, reserved before it leaves. `open` until it is known, or until nobody can say any more: then it is spent whole.
CREATE TABLE state.budget_reservations (
    agent_turn_id text NOT NULL,
    step          integer NOT NULL,
    attempt       integer NOT NULL,
    project_id    text NOT NULL,
    model         text NOT NULL,
    tokens        bigint NOT NULL CHECK (tokens >= 0),
    cost          bigint NOT NULL CHECK (cost >= 0),
    tokens_at     text[] NOT NULL,
    cost_at       text[] NOT NULL,
    status        text NOT NULL DEFAULT 'open' CHECK (status IN ('open', 'settled', 'unsettled', 'released')),
    used_tokens   bigint CHECK (used_tokens >= 0),
    used_cost     bigint CHECK (used_cost >= 0),
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    settled_at    timestamptz,
    PRIMARY KEY (agent_turn_id, step, attempt),
    CONSTRAINT reservation_is_settled CHECK ((status = 'open') = (settled_at IS NULL)),
    CONSTRAINT use_is_known CHECK ((status IN ('settled', 'released')) = (used_tokens IS NOT NULL AND used_cost IS NOT NULL))
) WITH (fillfactor = 70);
COMMENT ON COLUMN state.budget_reservations.tokens_at IS 'the budgets that are charged for its tokens';
COMMENT ON COLUMN state.budget_reservations.used_tokens IS 'null while it is open, and where nobody knows: then tokens counts';
COMMENT ON COLUMN state.budget_reservations.status IS 'open; settled: the use is known; released: nothing was used; unsettled: part of it is unknown and booked whole';

CREATE TABLE state.project_budgets (
    project_id text NOT NULL,
    period     text NOT NULL CHECK (period IN ('day', 'month')),
    max_tokens bigint CHECK (max_tokens >= 0),
    max_cost   bigint CHECK (max_cost >= 0),
    max_turns  bigint CHECK (max_turns >= 0),
    updated_at timestamptz NOT NULL DEFAULT now(),
    updated_by text,
    PRIMARY KEY (project_id, period)
);
COMMENT ON TABLE state.project_budgets IS 'what the turns of a project that are enqueued in a day or month (UTC) may spend together';

-- US dollars per million tokens, which are micro-dollars per token.
CREATE TABLE state.model_prices (
    model                    text PRIMARY KEY,
    input_per_million        numeric NOT NULL CHECK (input_per_million >= 0),
    output_per_million       numeric NOT NULL CHECK (output_per_million >= 0),
    cached_input_per_million numeric CHECK (cached_input_per_million >= 0),
    max_output_tokens        bigint,
    source                   text NOT NULL,
    updated_at               timestamptz NOT NULL DEFAULT now()
);

-- What one transaction changes at one row: reserved, spent, unsettled and beyond of tokens and of cost; reserved and spent turns.
CREATE TYPE state.budget_entry AS (
    budget_id text, reserved_tokens bigint, spent_tokens bigint, unsettled_tokens bigint, beyond_tokens bigint,
    reserved_cost bigint, spent_cost bigint, unsettled_cost bigint, beyond_cost bigint, reserved_turns bigint, spent_turns bigint);

-- A number that others have written, within what sums of bigint bear; null where nobody knows.
CREATE FUNCTION state.as_amount(value numeric) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN value IS NOT NULL THEN least(greatest(ceil(value), 0), 1000000000000000)::bigint END;

-- In PL/pgSQL, as all below that each attempt calls: it keeps its plans.
CREATE FUNCTION state.text_list(value jsonb) RETURNS text[] LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    RETURN ARRAY(SELECT jsonb_array_elements_text(value));
END $$;

-- Where the turns of a project are charged that have no turn above them: payload.budget without a grant; null where nothing limits them.
CREATE FUNCTION state.plan_of_project(project text) RETURNS jsonb LANGUAGE sql STABLE AS $$
    SELECT jsonb_build_object(
               'tokens', coalesce(jsonb_agg(n.id ORDER BY n.id) FILTER (WHERE p.max_tokens IS NOT NULL), '[]'),
               'cost', coalesce(jsonb_agg(n.id ORDER BY n.id) FILTER (WHERE p.max_cost IS NOT NULL), '[]'),
               'turns', coalesce(jsonb_agg(n.id ORDER BY n.id) FILTER (WHERE p.max_turns IS NOT NULL), '[]'),
               'until', NULL, 'depth', 1)
    FROM state.project_budgets p
    CROSS JOIN LATERAL (SELECT p.project_id || '/' || p.period || '/' || to_char(
        now() AT TIME ZONE 'UTC', CASE p.period WHEN 'day' THEN 'YYYY-MM-DD' ELSE 'YYYY-MM' END) AS id) n
    WHERE p.project_id = project AND num_nonnulls(p.max_tokens, p.max_cost, p.max_turns) > 0
    HAVING count(*) > 0
$$;

-- payload.budget of a turn: for each dimension the rows that are charged for it, and `until`; null where nothing limits it. own: max_tokens,
-- max_cost, max_turns, max_seconds, warn_percent, each of which may be absent; parent: payload.budget of the turn that asks, if it has one.
-- `grant` is what the turn's own row shall be, and from where it is taken. It reads nothing but the clock where there is a parent's.
CREATE FUNCTION state.plan_budget(project text, turn text, own jsonb, parent jsonb) RETURNS jsonb LANGUAGE plpgsql STABLE AS $$
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

-- The rows that stand in these lists, with those that closed ones passed their charges to in their place; locked with `locks`, deepest
-- first. A closed row whose grant of the dimension came from nobody is charged itself. Rows that are gone leave the lists. A row that is
-- seen closed is not locked: it never opens again.
CREATE FUNCTION state.open_budgets(locks boolean, INOUT tokens text[], INOUT cost text[], INOUT turns text[], OUT held state.budgets[])
LANGUAGE plpgsql AS $$
DECLARE
    wanted text[];
    next text;
    b state.budgets;
BEGIN
    held := '{}';
    LOOP
        wanted := ARRAY(SELECT DISTINCT x.id FROM unnest(tokens || cost || turns) x (id)
                        WHERE NOT EXISTS (SELECT FROM unnest(held) f WHERE f.budget_id = x.id));
        EXIT WHEN cardinality(wanted) = 0;
        b := NULL;
        next := wanted[1];
        IF cardinality(wanted) > 1 THEN  -- depths never change
            SELECT x.budget_id INTO next FROM state.budgets x WHERE x.budget_id = ANY (wanted) ORDER BY x.depth DESC, x.budget_id LIMIT 1;
            next := coalesce(next, wanted[1]);
        END IF;
        IF locks THEN
            SELECT x.* INTO b FROM state.budgets x WHERE x.budget_id = next AND x.closed_at IS NULL FOR NO KEY UPDATE;
        END IF;
        IF b.budget_id IS NULL THEN
            SELECT x.* INTO b FROM state.budgets x WHERE x.budget_id = next;
            IF b.closed_at IS NOT NULL THEN
                IF next = ANY (tokens) AND b.from_tokens <> '{}' THEN tokens := array_remove(tokens, next) || b.from_tokens; END IF;
                IF next = ANY (cost) AND b.from_cost <> '{}' THEN cost := array_remove(cost, next) || b.from_cost; END IF;
                IF next = ANY (turns) AND b.from_turns <> '{}' THEN turns := array_remove(turns, next) || b.from_turns; END IF;
                CONTINUE WHEN next <> ALL (tokens || cost || turns);
                IF locks THEN
                    SELECT x.* INTO b FROM state.budgets x WHERE x.budget_id = next FOR NO KEY UPDATE;
                END IF;
            ELSIF b.budget_id IS NULL AND next LIKE '%/%' AND NOT locks THEN  -- of a day or month of which no turn has been charged
                b.budget_id := next;
                b.depth := 0;
                SELECT p.max_tokens, p.max_cost, p.max_turns, 0, 0, 0, 0, 0, 0
                INTO b.max_tokens, b.max_cost, b.max_turns, b.spent_tokens, b.spent_cost, b.spent_turns, b.reserved_tokens, b.reserved_cost, b.reserved_turns
                FROM state.project_budgets p WHERE p.project_id = split_part(next, '/', 1) AND p.period = split_part(next, '/', 2);
            ELSIF b.budget_id IS NULL THEN
                wanted := ARRAY(SELECT x.id FROM unnest(wanted) x (id) WHERE NOT EXISTS (SELECT FROM state.budgets y WHERE y.budget_id = x.id));
                tokens := ARRAY(SELECT x.id FROM unnest(tokens) x (id) WHERE x.id <> ALL (wanted));
                cost := ARRAY(SELECT x.id FROM unnest(cost) x (id) WHERE x.id <> ALL (wanted));
                turns := ARRAY(SELECT x.id FROM unnest(turns) x (id) WHERE x.id <> ALL (wanted));
                CONTINUE;
            END IF;
        END IF;
        held := held || b;
    END LOOP;
END $$;

-- Books entries, deepest rows first. A row whose turn is over closes when nothing of it is reserved: what came from above goes back there, with
-- what was spent of it. What a closed row hears later, it passes on.
CREATE FUNCTION state.book_budgets(todo state.budget_entry[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    next text;
    d state.budget_entry;
    b state.budgets;
    closes boolean;
BEGIN
    LOOP
        EXIT WHEN cardinality(todo) = 0;
        d := todo[1];
        next := d.budget_id;
        IF cardinality(todo) = 1 THEN
            todo := '{}';
        ELSE
            SELECT x.budget_id INTO next FROM state.budgets x
            WHERE x.budget_id IN (SELECT t.budget_id FROM unnest(todo) t) ORDER BY x.depth DESC, x.budget_id LIMIT 1;
            EXIT WHEN next IS NULL;
            SELECT next, sum(t.reserved_tokens), sum(t.spent_tokens), sum(t.unsettled_tokens), sum(t.beyond_tokens), sum(t.reserved_cost),
                   sum(t.spent_cost), sum(t.unsettled_cost), sum(t.beyond_cost), sum(t.reserved_turns), sum(t.spent_turns)
            INTO d FROM unnest(todo) t WHERE t.budget_id = next;
            todo := ARRAY(SELECT t FROM unnest(todo) t WHERE t.budget_id <> next);
        END IF;
        UPDATE state.budgets x SET
            reserved_tokens = x.reserved_tokens + d.reserved_tokens, spent_tokens = x.spent_tokens + d.spent_tokens,
            unsettled_tokens = x.unsettled_tokens + d.unsettled_tokens, beyond_tokens = x.beyond_tokens + d.beyond_tokens,
            reserved_cost = x.reserved_cost + d.reserved_cost, spent_cost = x.spent_cost + d.spent_cost,
            unsettled_cost = x.unsettled_cost + d.unsettled_cost, beyond_cost = x.beyond_cost + d.beyond_cost,
            reserved_turns = x.reserved_turns + d.reserved_turns, spent_turns = x.spent_turns + d.spent_turns
        WHERE x.budget_id = next RETURNING x.* INTO b;
        CONTINUE WHEN b.ended_at IS NULL;
        closes := b.closed_at IS NULL AND b.reserved_tokens = 0 AND b.reserved_cost = 0 AND b.reserved_turns = 0;
        CONTINUE WHEN b.closed_at IS NULL AND NOT closes;
        IF closes THEN
            UPDATE state.budgets x SET closed_at = clock_timestamp() WHERE x.budget_id = next;
        END IF;
        todo := todo || ARRAY(
            SELECT (f.id, sum(f.rt), sum(f.st), sum(f.ut), sum(f.bt), sum(f.rc), sum(f.sc), sum(f.uc), sum(f.bc), sum(f.rn), sum(f.sn))::state.budget_entry
            FROM (
                SELECT t.id, CASE WHEN closes THEN -b.max_tokens ELSE 0 END AS rt, CASE WHEN closes THEN b.spent_tokens ELSE d.spent_tokens END AS st,
                       CASE WHEN closes THEN b.unsettled_tokens ELSE d.unsettled_tokens END AS ut, greatest(b.spent_tokens - b.max_tokens, 0)
                       - CASE WHEN closes THEN 0 ELSE greatest(b.spent_tokens - d.spent_tokens - b.max_tokens, 0) END AS bt,
                       0 AS rc, 0 AS sc, 0 AS uc, 0 AS bc, 0 AS rn, 0 AS sn
                FROM unnest(b.from_tokens) t (id)
                UNION ALL
                SELECT c.id, 0, 0, 0, 0, CASE WHEN closes THEN -b.max_cost ELSE 0 END, CASE WHEN closes THEN b.spent_cost ELSE d.spent_cost END,
                       CASE WHEN closes THEN b.unsettled_cost ELSE d.unsettled_cost END, greatest(b.spent_cost - b.max_cost, 0)
                       - CASE WHEN closes THEN 0 ELSE greatest(b.spent_cost - d.spent_cost - b.max_cost, 0) END, 0, 0
                FROM unnest(b.from_cost) c (id)
                UNION ALL
                SELECT n.id, 0, 0, 0, 0, 0, 0, 0, 0, CASE WHEN closes THEN -b.max_turns ELSE 0 END,
                       CASE WHEN closes THEN b.spent_turns ELSE d.spent_turns END
                FROM unnest(b.from_turns) n (id)) f
            GROUP BY f.id);
    END LOOP;
END $$;

-- Which of these turns cannot have what they ask for, as of these rows, in order: one that is refused takes nothing from those after it.
-- plans: payload.budget of each, all of one parent. refusal: dimension, budget_id, had, spent, reserved, asked, left.
CREATE FUNCTION state.refused_grants(rows state.budgets[], at_tokens text[], at_cost text[], at_turns text[], plans jsonb[])
RETURNS TABLE (place integer, refusal jsonb) LANGUAGE plpgsql AS $$
DECLARE
    rest_tokens bigint := (SELECT min(b.max_tokens - b.spent_tokens - b.reserved_tokens) FROM unnest(rows) b WHERE b.budget_id = ANY (at_tokens));
    rest_cost bigint := (SELECT min(b.max_cost - b.spent_cost - b.reserved_cost) FROM unnest(rows) b WHERE b.budget_id = ANY (at_cost));
    rest_turns bigint := (SELECT min(b.max_turns - b.spent_turns - b.reserved_turns) FROM unnest(rows) b WHERE b.budget_id = ANY (at_turns));
    spent_out text := (  -- of what is spent for good no turn gets anything, whatever it asks for
        SELECT x.dimension FROM unnest(rows) b CROSS JOIN LATERAL (VALUES
            ('tokens', b.budget_id = ANY (at_tokens) AND b.spent_tokens >= b.max_tokens),
            ('cost', b.budget_id = ANY (at_cost) AND b.spent_cost >= b.max_cost AND b.max_cost > 0)) x (dimension, is_out)
        WHERE x.is_out LIMIT 1);
    wants_tokens bigint;
    wants_cost bigint;
    wants_turns bigint;
    short text;
BEGIN
    FOR i IN 1 .. cardinality(plans) LOOP
        wants_tokens := coalesce((plans[i] #>> '{grant,max_tokens}')::bigint, 0);
        wants_cost := coalesce((plans[i] #>> '{grant,max_cost}')::bigint, 0);
        wants_turns := coalesce((plans[i] #>> '{grant,max_turns}')::bigint, 1);
        place := i;
        IF wants_turns = 0 THEN  -- its own turn is one
            refusal := jsonb_build_object('dimension', 'turns', 'budget_id', NULL, 'had', 0, 'spent', 0, 'reserved', 0, 'asked', 1, 'left', 0);
            RETURN NEXT;
            CONTINUE;
        END IF;
        short := CASE WHEN wants_tokens > 0 AND wants_tokens > rest_tokens THEN 'tokens' WHEN wants_cost > 0 AND wants_cost > rest_cost THEN 'cost'
                      WHEN wants_turns > rest_turns THEN 'turns' ELSE spent_out END;
        IF short IS NULL THEN
            rest_tokens := rest_tokens - wants_tokens;
            rest_cost := rest_cost - wants_cost;
            rest_turns := rest_turns - wants_turns;
            CONTINUE;
        END IF;
        SELECT jsonb_build_object('dimension', short, 'budget_id', x.budget_id, 'had', x.had, 'spent', x.spent, 'reserved', x.reserved, 'asked', x.asked,
                                  'left', greatest(x.rest, 0)) INTO refusal
        FROM unnest(rows) b CROSS JOIN LATERAL (VALUES
            ('tokens', b.budget_id = ANY (at_tokens), b.budget_id, b.max_tokens, b.spent_tokens, b.reserved_tokens, wants_tokens, rest_tokens),
            ('cost', b.budget_id = ANY (at_cost), b.budget_id, b.max_cost, b.spent_cost, b.reserved_cost, wants_cost, rest_cost),
            ('turns', b.budget_id = ANY (at_turns), b.budget_id, b.max_turns, b.spent_turns, b.reserved_turns, wants_turns, rest_turns)
        ) x (dimension, charged, budget_id, had, spent, reserved, asked, rest)
        WHERE x.dimension = short AND x.charged AND x.had IS NOT NULL ORDER BY x.had - x.spent - x.reserved LIMIT 1;
        RETURN NEXT;
    END LOOP;
END $$;

-- Charges turns of one parent that are being enqueued: makes the rows of their own grants, reserves these where they come from, and counts the
-- turns. plans: an array of {agent_turn_id, budget}, budget being payload.budget. Null, or why one of them cannot have it: then
-- nothing is written.
CREATE FUNCTION state.charge_turns(project text, channel text, plans jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    budgets jsonb[] := ARRAY(SELECT p -> 'budget' FROM jsonb_array_elements(plans) WITH ORDINALITY x (p, place) ORDER BY place);
    above jsonb := coalesce(budgets[1] #> '{grant,from}', budgets[1]);
    at_tokens text[] := state.text_list(above -> 'tokens');
    at_cost text[] := state.text_list(above -> 'cost');
    at_turns text[] := state.text_list(above -> 'turns');
    rows state.budgets[];
    refused jsonb;
BEGIN
    -- The first turn of a day or month makes its row.
    INSERT INTO state.budgets (budget_id, project_id, kind, depth, max_tokens, max_cost, max_turns)
    SELECT x.id, project, p.kind, CASE p.kind WHEN 'month' THEN 0 ELSE 1 END, l.max_tokens, l.max_cost, l.max_turns
    FROM (SELECT DISTINCT u.id FROM unnest(at_tokens || at_cost || at_turns) u (id) WHERE u.id LIKE '%/%') x
    CROSS JOIN LATERAL (SELECT split_part(x.id, '/', 2) AS kind) p
    LEFT JOIN state.project_budgets l ON l.project_id = project AND l.period = p.kind
    WHERE NOT EXISTS (SELECT FROM state.budgets b WHERE b.budget_id = x.id) ORDER BY p.kind
    ON CONFLICT DO NOTHING;
    SELECT o.tokens, o.cost, o.turns, o.held INTO at_tokens, at_cost, at_turns, rows FROM state.open_budgets(true, at_tokens, at_cost, at_turns) o;
    SELECT r.refusal INTO refused FROM state.refused_grants(rows, at_tokens, at_cost, at_turns, budgets) r LIMIT 1;
    IF refused IS NOT NULL THEN
        RETURN refused;
    END IF;
    INSERT INTO state.budgets (budget_id, project_id, channel_id, kind, agent_turn_id, depth, max_tokens, max_cost, max_turns, spent_turns,
                               from_tokens, from_cost, from_turns, until, warn_percent)
    SELECT x.agent_turn_id, project, channel, 'turn', x.agent_turn_id, (x.budget ->> 'depth')::int, g.max_tokens, g.max_cost, g.max_turns,
           CASE WHEN g.max_turns IS NULL THEN 0 ELSE 1 END, CASE WHEN g.max_tokens IS NULL THEN '{}' ELSE at_tokens END,
           CASE WHEN g.max_cost IS NULL THEN '{}' ELSE at_cost END, CASE WHEN g.max_turns IS NULL THEN '{}' ELSE at_turns END,
           (x.budget ->> 'until')::timestamptz, coalesce(g.warn_percent, 80)
    FROM jsonb_to_recordset(plans) x (agent_turn_id text, budget jsonb)
    CROSS JOIN LATERAL jsonb_to_record(x.budget -> 'grant') g (max_tokens bigint, max_cost bigint, max_turns bigint, warn_percent int)
    WHERE x.budget ? 'grant';
    UPDATE state.budgets b SET
        reserved_tokens = b.reserved_tokens + CASE WHEN b.budget_id = ANY (at_tokens) THEN t.tokens ELSE 0 END,
        reserved_cost = b.reserved_cost + CASE WHEN b.budget_id = ANY (at_cost) THEN t.cost ELSE 0 END,
        reserved_turns = b.reserved_turns + CASE WHEN b.budget_id = ANY (at_turns) THEN t.granted_turns ELSE 0 END,
        spent_turns = b.spent_turns + CASE WHEN b.budget_id = ANY (at_turns) THEN t.turns ELSE 0 END
    FROM (
        SELECT coalesce(sum((x #>> '{grant,max_tokens}')::bigint), 0) AS tokens, coalesce(sum((x #>> '{grant,max_cost}')::bigint), 0) AS cost,
               coalesce(sum((x #>> '{grant,max_turns}')::bigint), 0) AS granted_turns,
               count(*) FILTER (WHERE x #>> '{grant,max_turns}' IS NULL) AS turns
        FROM unnest(budgets) x) t
    WHERE b.budget_id IN (SELECT r.budget_id FROM unnest(rows) r);
    RETURN NULL;
END $$;

-- Charges a turn that nobody's call has made, at the commit of its enqueue, which it undoes where the turn does not fit.
CREATE FUNCTION state.charge_enqueue() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    refused jsonb := state.charge_turns(NEW.project_id, NEW.channel_id, jsonb_build_array(jsonb_build_object(
        'agent_turn_id', NEW.agent_turn_id, 'budget', NEW.payload -> 'budget')));
BEGIN
    IF refused IS NOT NULL THEN
        RAISE EXCEPTION 'budget exceeded' USING ERRCODE = 'TB001', DETAIL = refused::text;
    END IF;
    RETURN NULL;
END $$;

-- Which children of one turn cannot have what they ask for, without a lock: plans as in charge_turns, in the order of their tasks.
CREATE FUNCTION state.judge_children(plans jsonb) RETURNS TABLE (agent_turn_id text, refusal jsonb) LANGUAGE sql STABLE AS $$
    SELECT plans -> (r.place - 1) ->> 'agent_turn_id', r.refusal
    FROM (SELECT ARRAY(SELECT p -> 'budget' FROM jsonb_array_elements(plans) WITH ORDINALITY x (p, place) ORDER BY place) AS budgets) b
    CROSS JOIN LATERAL (SELECT coalesce(b.budgets[1] #> '{grant,from}', b.budgets[1]) AS above) a
    CROSS JOIN LATERAL state.open_budgets(false, state.text_list(a.above -> 'tokens'), state.text_list(a.above -> 'cost'),
                                          state.text_list(a.above -> 'turns')) o
    CROSS JOIN LATERAL state.refused_grants(o.held, o.tokens, o.cost, o.turns, b.budgets) r
$$;

-- Charges the children of a turn that are being enqueued: the last thing that a transaction does, since it locks budgets. If others took
-- meanwhile what judge_children saw, the transaction fails as one that conflicts with another, and is repeated.
CREATE FUNCTION state.grant_children(project text, channel text, plans jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF jsonb_array_length(plans) > 0 AND state.charge_turns(project, channel, plans) IS NOT NULL THEN
        RAISE EXCEPTION 'a budget has changed meanwhile' USING ERRCODE = 'serialization_failure';
    END IF;
END $$;

-- What attempts at a model of a turn have used, as entries for book_budgets: uses is an array of {step, attempt, tokens, cost}, null for what
-- nobody knows, which is booked whole. The truth about an attempt that was booked whole corrects that; what is known stays.
CREATE FUNCTION state.settle_attempts(turn text, uses jsonb, of_step integer DEFAULT NULL) RETURNS state.budget_entry[] LANGUAGE plpgsql AS $$
DECLARE
    entries state.budget_entry[] := '{}';
    u jsonb;
    r state.budget_reservations;
    was_open boolean;
    now_tokens bigint;
    now_cost bigint;
    id text;
    t state.budget_entry;
    c state.budget_entry;
BEGIN
    FOR u IN SELECT jsonb_array_elements(uses) LOOP
        SELECT x.* INTO r FROM state.budget_reservations x
        WHERE x.agent_turn_id = turn AND x.step = coalesce((u ->> 'step')::int, of_step) AND x.attempt = (u ->> 'attempt')::int;
        was_open := r.status = 'open';
        now_tokens := coalesce(r.used_tokens, state.as_amount((u ->> 'tokens')::numeric));
        now_cost := coalesce(r.used_cost, state.as_amount((u ->> 'cost')::numeric));
        CONTINUE WHEN r.status IS NULL OR (NOT was_open AND (now_tokens, now_cost) IS NOT DISTINCT FROM (r.used_tokens, r.used_cost));
        UPDATE state.budget_reservations x SET used_tokens = now_tokens, used_cost = now_cost, settled_at = clock_timestamp(),
               status = CASE WHEN now_tokens IS NULL OR now_cost IS NULL THEN 'unsettled' WHEN now_tokens = 0 AND now_cost = 0 THEN 'released' ELSE 'settled' END
        WHERE x.agent_turn_id = turn AND x.step = r.step AND x.attempt = r.attempt;
        -- each figure after, less what it was before
        t := (NULL, CASE WHEN was_open THEN -r.tokens ELSE 0 END,
              coalesce(now_tokens, r.tokens) - CASE WHEN was_open THEN 0 ELSE coalesce(r.used_tokens, r.tokens) END,
              CASE WHEN now_tokens IS NULL THEN r.tokens ELSE 0 END - CASE WHEN NOT was_open AND r.used_tokens IS NULL THEN r.tokens ELSE 0 END,
              greatest(now_tokens - r.tokens, 0) - CASE WHEN was_open THEN 0 ELSE greatest(r.used_tokens - r.tokens, 0) END, 0, 0, 0, 0, 0, 0);
        c := (NULL, 0, 0, 0, 0, CASE WHEN was_open THEN -r.cost ELSE 0 END,
              coalesce(now_cost, r.cost) - CASE WHEN was_open THEN 0 ELSE coalesce(r.used_cost, r.cost) END,
              CASE WHEN now_cost IS NULL THEN r.cost ELSE 0 END - CASE WHEN NOT was_open AND r.used_cost IS NULL THEN r.cost ELSE 0 END,
              greatest(now_cost - r.cost, 0) - CASE WHEN was_open THEN 0 ELSE greatest(r.used_cost - r.cost, 0) END, 0, 0);
        IF r.tokens_at = r.cost_at THEN
            c.reserved_tokens := t.reserved_tokens;
            c.spent_tokens := t.spent_tokens;
            c.unsettled_tokens := t.unsettled_tokens;
            c.beyond_tokens := t.beyond_tokens;
        ELSE
            FOREACH id IN ARRAY r.tokens_at LOOP
                t.budget_id := id;
                entries := entries || t;
            END LOOP;
        END IF;
        FOREACH id IN ARRAY r.cost_at LOOP
            c.budget_id := id;
            entries := entries || c;
        END LOOP;
    END LOOP;
    RETURN entries;
END $$;

-- A step says what its attempts used: metadata.budget.uses, an array of {attempt, tokens, cost}.
CREATE FUNCTION state.settle_step() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM state.book_budgets(state.settle_attempts(NEW.agent_turn_id, coalesce(NEW.metadata #> '{budget,uses}', '[]'),
                                                     state.as_count(substring(NEW.step_id FROM '-s([0-9]+)$'))));
    RETURN NULL;
END $$;

-- The end of a turn, whichever statement it is: what is still reserved for its attempts is settled by what its steps say, or whole; its own
-- grant closes when nothing of it is reserved. A turn that nothing limits costs two looks by key.
CREATE FUNCTION state.settle_budget() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    entries state.budget_entry[];
BEGIN
    IF EXISTS (SELECT FROM state.budget_reservations r WHERE r.agent_turn_id = NEW.agent_turn_id) THEN
        entries := state.settle_attempts(NEW.agent_turn_id, (
            SELECT coalesce(jsonb_agg(jsonb_build_object('step', r.step, 'attempt', r.attempt, 'tokens', u -> 'tokens', 'cost', u -> 'cost')), '[]')
            FROM state.budget_reservations r
            LEFT JOIN state.agent_steps s ON s.step_id = r.agent_turn_id || '-s' || r.step AND s.project_id = r.project_id
            LEFT JOIN LATERAL jsonb_array_elements(coalesce(s.metadata #> '{budget,uses}', '[]')) u ON (u ->> 'attempt')::int = r.attempt
            WHERE r.agent_turn_id = NEW.agent_turn_id AND r.status = 'open'));
    END IF;
    UPDATE state.budgets b SET ended_at = clock_timestamp() WHERE b.budget_id = NEW.agent_turn_id AND b.kind = 'turn' AND b.ended_at IS NULL;
    IF FOUND THEN
        entries := entries || (NEW.agent_turn_id, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)::state.budget_entry;
    END IF;
    IF cardinality(entries) > 0 THEN
        PERFORM state.book_budgets(entries);
    END IF;
    RETURN NULL;
END $$;

-- Reserves what an attempt at a model may use, before the request leaves: its input and the most that it may answer. Behind the gate of the
-- step, which a mark closes. What earlier attempts of the turn left open is booked whole until their truth is known.
-- verdict: reserved | exhausted (dimension, and what of it the row had, spent, reserved, and what was wanted; seconds: `until` is past) |
-- unpriced (a cost is limited and the model has no price) | null (stale). The same attempt again hears the same.
-- warned: the first limit of which the reservation passes the soft limit: budget_id, dimension, percent, spent, reserved, max.
CREATE FUNCTION state.reserve_attempt(
    project text, agent text, turn text, epoch bigint, of_step integer, of_attempt integer, of_model text, input_tokens bigint, max_output bigint,
    OUT verdict text, OUT dimension text, OUT budget_id text, OUT had bigint, OUT spent bigint, OUT reserved bigint, OUT wanted bigint,
    OUT until timestamptz, OUT warned jsonb)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    budget jsonb;
    known text;
    stale jsonb;
    at_tokens text[];
    at_cost text[];
    at_turns text[] := '{}';
    rows state.budgets[];
    wants_tokens bigint := state.as_amount(input_tokens::numeric + max_output);
    wants_cost bigint;
    short record;
BEGIN
    SELECT coalesce(i.payload -> 'budget', '{}') INTO budget
    FROM state.agent_state_head h JOIN state.agent_inbox i ON i.inbox_id = h.active_inbox_id
    WHERE h.agent_id = agent AND h.project_id = project AND h.active_agent_turn_id = turn AND h.turn_epoch = epoch
      AND h.status = 'running' AND h.step_count = of_step - 1
    FOR NO KEY UPDATE OF h;
    IF NOT FOUND OR state.is_marked(turn) THEN
        RETURN;
    END IF;
    until := (budget ->> 'until')::timestamptz;
    SELECT x.of_this, x.others INTO known, stale FROM (
        SELECT max(r.status) FILTER (WHERE r.step = of_step AND r.attempt = of_attempt) AS of_this,
               jsonb_agg(jsonb_build_object('step', r.step, 'attempt', r.attempt)) FILTER (
                   WHERE r.status = 'open' AND (r.step, r.attempt) <> (of_step, of_attempt)) AS others
        FROM state.budget_reservations r WHERE r.agent_turn_id = turn) x;
    IF known IS NOT NULL THEN
        verdict := 'reserved';
        RETURN;
    END IF;
    IF stale IS NOT NULL THEN
        PERFORM state.book_budgets(state.settle_attempts(turn, stale));
    END IF;
    IF until <= clock_timestamp() THEN
        verdict := 'exhausted';
        dimension := 'seconds';
        RETURN;
    END IF;
    at_tokens := state.text_list(budget -> 'tokens');
    at_cost := state.text_list(budget -> 'cost');
    IF cardinality(at_tokens) = 0 AND cardinality(at_cost) = 0 THEN
        verdict := 'reserved';
        RETURN;
    END IF;
    SELECT state.as_amount(p.input_per_million * input_tokens + p.output_per_million * max_output) INTO wants_cost
    FROM state.model_prices p WHERE p.model = of_model;
    SELECT o.tokens, o.cost, o.held INTO at_tokens, at_cost, rows FROM state.open_budgets(true, at_tokens, at_cost, at_turns) o;
    IF wants_cost IS NULL AND EXISTS (SELECT FROM unnest(rows) b WHERE b.budget_id = ANY (at_cost) AND b.max_cost IS NOT NULL) THEN
        verdict := 'unpriced';
        RETURN;
    END IF;
    wants_cost := coalesce(wants_cost, 0);
    SELECT x.* INTO short FROM unnest(rows) b CROSS JOIN LATERAL (VALUES
        ('tokens', b.budget_id, b.budget_id = ANY (at_tokens), b.max_tokens, b.spent_tokens, b.reserved_tokens, wants_tokens),
        ('cost', b.budget_id, b.budget_id = ANY (at_cost), b.max_cost, b.spent_cost, b.reserved_cost, wants_cost)
    ) x (dimension, budget_id, charged, had, spent, reserved, wanted)
    WHERE x.charged AND x.spent + x.reserved + x.wanted > x.had ORDER BY x.dimension DESC, x.had - x.spent - x.reserved LIMIT 1;
    IF FOUND THEN
        verdict := 'exhausted';
        dimension := short.dimension;
        budget_id := short.budget_id;
        had := short.had;
        spent := short.spent;
        reserved := short.reserved;
        wanted := short.wanted;
        RETURN;
    END IF;
    verdict := 'reserved';
    SELECT jsonb_build_object('budget_id', x.budget_id, 'dimension', x.dimension, 'percent', x.percent, 'spent', x.spent,
                              'reserved', x.reserved, 'max', x.had) INTO warned
    FROM unnest(rows) b CROSS JOIN LATERAL (VALUES
        ('tokens', b.budget_id, b.budget_id = ANY (at_tokens), b.max_tokens, b.spent_tokens, b.reserved_tokens + wants_tokens, b.warn_percent),
        ('cost', b.budget_id, b.budget_id = ANY (at_cost), b.max_cost, b.spent_cost, b.reserved_cost + wants_cost, b.warn_percent)
    ) x (dimension, budget_id, charged, had, spent, reserved, percent)
    WHERE b.warned_at IS NULL AND x.charged AND (x.spent + x.reserved)::numeric * 100 >= x.had::numeric * x.percent
    ORDER BY b.depth DESC, x.dimension DESC LIMIT 1;
    UPDATE state.budgets b SET
        reserved_tokens = b.reserved_tokens + CASE WHEN b.budget_id = ANY (at_tokens) THEN wants_tokens ELSE 0 END,
        reserved_cost = b.reserved_cost + CASE WHEN b.budget_id = ANY (at_cost) THEN wants_cost ELSE 0 END,
        warned_at = CASE WHEN b.budget_id = warned ->> 'budget_id' THEN clock_timestamp() ELSE b.warned_at END
    WHERE b.budget_id = ANY (at_tokens || at_cost);
    INSERT INTO state.budget_reservations (agent_turn_id, step, attempt, project_id, model, tokens, cost, tokens_at, cost_at)
    VALUES (turn, of_step, of_attempt, project, of_model, wants_tokens, wants_cost, at_tokens, at_cost);
END $$;

-- Gives a budget more, or takes back what is free: more has max_tokens, max_cost, max_turns as differences, and may name its request, which
-- heard again changes nothing. A turn's grant takes it from where it came from. It runs with the caller's rights: a worker has none to raise.
-- verdict: raised | unknown_budget | budget_closed | budget_unlimited (it has no limit of that dimension) | budget_in_use (less than is spent and
-- reserved) | budget_exceeded (what it came from has not so much left); detail says of what.
CREATE FUNCTION state.raise_budget(project text, budget text, more jsonb, caller text, OUT verdict text, OUT detail jsonb) LANGUAGE plpgsql AS $$
DECLARE
    b state.budgets;
    m record;
    rows state.budgets[];
    refused jsonb;
BEGIN
    SELECT x.* INTO m FROM jsonb_to_record(more) x (max_tokens bigint, max_cost bigint, max_turns bigint, request text);
    SELECT x.* INTO b FROM state.budgets x WHERE x.budget_id = budget AND x.project_id = project FOR NO KEY UPDATE;
    verdict := CASE WHEN b.budget_id IS NULL THEN 'unknown_budget' WHEN b.raised_with = m.request THEN 'raised'
                    WHEN b.closed_at IS NOT NULL THEN 'budget_closed' END;
    IF verdict IS NOT NULL THEN
        RETURN;
    END IF;
    SELECT x.code, to_jsonb(x) - 'code' INTO verdict, detail FROM (
        SELECT v.dimension, v.had, v.spent, v.reserved, v.asked,
               CASE WHEN v.had IS NULL THEN 'budget_unlimited' ELSE 'budget_in_use' END AS code
        FROM (VALUES ('tokens', b.max_tokens, b.spent_tokens, b.reserved_tokens, m.max_tokens),
                     ('cost', b.max_cost, b.spent_cost, b.reserved_cost, m.max_cost),
                     ('turns', b.max_turns, b.spent_turns, b.reserved_turns, m.max_turns)) v (dimension, had, spent, reserved, asked)
        WHERE v.asked IS NOT NULL AND (v.had IS NULL OR (v.asked < 0 AND v.had + v.asked < v.spent + v.reserved))
        LIMIT 1) x;
    IF verdict IS NOT NULL THEN
        RETURN;
    END IF;
    -- what an open grant came from is open
    SELECT o.held INTO rows FROM state.open_budgets(true, CASE WHEN m.max_tokens <> 0 THEN b.from_tokens ELSE '{}' END,
        CASE WHEN m.max_cost <> 0 THEN b.from_cost ELSE '{}' END, CASE WHEN m.max_turns <> 0 THEN b.from_turns ELSE '{}' END) o;
    SELECT to_jsonb(v) INTO refused FROM unnest(rows) r CROSS JOIN LATERAL (
        VALUES ('tokens', r.budget_id, r.max_tokens, r.spent_tokens, r.reserved_tokens, CASE WHEN r.budget_id = ANY (b.from_tokens) THEN m.max_tokens END),
               ('cost', r.budget_id, r.max_cost, r.spent_cost, r.reserved_cost, CASE WHEN r.budget_id = ANY (b.from_cost) THEN m.max_cost END),
               ('turns', r.budget_id, r.max_turns, r.spent_turns, r.reserved_turns, CASE WHEN r.budget_id = ANY (b.from_turns) THEN m.max_turns END)
    ) v (dimension, budget_id, had, spent, reserved, asked)
    WHERE v.asked > 0 AND v.spent + v.reserved + v.asked > v.had LIMIT 1;
    IF refused IS NOT NULL THEN
        verdict := 'budget_exceeded';
        detail := refused;
        RETURN;
    END IF;
    UPDATE state.budgets x SET
        reserved_tokens = x.reserved_tokens + CASE WHEN x.budget_id = ANY (b.from_tokens) THEN coalesce(m.max_tokens, 0) ELSE 0 END,
        reserved_cost = x.reserved_cost + CASE WHEN x.budget_id = ANY (b.from_cost) THEN coalesce(m.max_cost, 0) ELSE 0 END,
        reserved_turns = x.reserved_turns + CASE WHEN x.budget_id = ANY (b.from_turns) THEN coalesce(m.max_turns, 0) ELSE 0 END
    WHERE x.budget_id IN (SELECT r.budget_id FROM unnest(rows) r);
    UPDATE state.budgets x SET max_tokens = x.max_tokens + coalesce(m.max_tokens, 0), max_cost = x.max_cost + coalesce(m.max_cost, 0),
        max_turns = x.max_turns + coalesce(m.max_turns, 0), warned_at = NULL, updated_at = clock_timestamp(), updated_by = caller,
        raised_with = m.request
    WHERE x.budget_id = budget;
    verdict := 'raised';
END $$;

-- Sets what the turns of a project may spend together in a day or month, and what those of this day or month may; null: nothing limits them.
-- Where more is spent and reserved already, nothing more is given.
CREATE FUNCTION state.limit_project(project text, for_period text, limits jsonb, caller text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    m record;
    budget text := project || '/' || for_period || '/' || to_char(
        now() AT TIME ZONE 'UTC', CASE for_period WHEN 'day' THEN 'YYYY-MM-DD' ELSE 'YYYY-MM' END);
BEGIN
    SELECT x.* INTO m FROM jsonb_to_record(coalesce(nullif(limits, 'null'), '{}')) x (max_tokens bigint, max_cost bigint, max_turns bigint);
    UPDATE state.project_budgets p SET max_tokens = m.max_tokens, max_cost = m.max_cost, max_turns = m.max_turns, updated_at = now(), updated_by = caller
    WHERE p.project_id = project AND p.period = for_period;
    IF NOT FOUND THEN  -- of two at once the second one is repeated
        INSERT INTO state.project_budgets (project_id, period, max_tokens, max_cost, max_turns, updated_by)
        VALUES (project, for_period, m.max_tokens, m.max_cost, m.max_turns, caller);
    END IF;
    UPDATE state.budgets b SET max_tokens = m.max_tokens, max_cost = m.max_cost, max_turns = m.max_turns, warned_at = NULL,
        updated_at = clock_timestamp(), updated_by = caller, lowered_at = CASE
            WHEN b.spent_tokens + b.reserved_tokens > m.max_tokens OR b.spent_cost + b.reserved_cost > m.max_cost
                 OR b.spent_turns + b.reserved_turns > m.max_turns THEN clock_timestamp() ELSE b.lowered_at END
    WHERE b.budget_id = budget;
    IF NOT FOUND THEN
        INSERT INTO state.budgets (budget_id, project_id, kind, depth, max_tokens, max_cost, max_turns, updated_by)
        VALUES (budget, project, for_period, CASE for_period WHEN 'month' THEN 0 ELSE 1 END, m.max_tokens, m.max_cost, m.max_turns, caller);
    END IF;
    RETURN budget;
END $$;

-- Removes what was booked for these turns, which are being removed. What rows that stay were charged for them is past from now on.
CREATE FUNCTION state.forget_budgets(ids text[]) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    gone jsonb;
BEGIN
    WITH reservations AS (
        DELETE FROM state.budget_reservations r WHERE r.agent_turn_id = ANY (ids)
        RETURNING r.tokens_at, r.cost_at, coalesce(r.used_tokens, r.tokens) AS tokens, coalesce(r.used_cost, r.cost) AS cost
    ),
    grants AS (
        DELETE FROM state.budgets b WHERE b.budget_id = ANY (ids)
        RETURNING b.from_tokens, b.from_cost, b.from_turns, b.spent_tokens, b.spent_cost, b.spent_turns
    ),
    charged AS (
        SELECT t.id, r.tokens, 0::bigint AS cost, 0::bigint AS turns FROM reservations r CROSS JOIN unnest(r.tokens_at) t (id)
        UNION ALL SELECT t.id, 0, r.cost, 0 FROM reservations r CROSS JOIN unnest(r.cost_at) t (id)
        UNION ALL SELECT t.id, g.spent_tokens, 0, 0 FROM grants g CROSS JOIN unnest(g.from_tokens) t (id)
        UNION ALL SELECT t.id, 0, g.spent_cost, 0 FROM grants g CROSS JOIN unnest(g.from_cost) t (id)
        UNION ALL SELECT t.id, 0, 0, g.spent_turns FROM grants g CROSS JOIN unnest(g.from_turns) t (id)
    )
    SELECT jsonb_object_agg(x.id, x.sums) INTO gone FROM (
        SELECT c.id, jsonb_build_object('tokens', sum(c.tokens), 'cost', sum(c.cost), 'turns', sum(c.turns)) AS sums
        FROM charged c WHERE c.id <> ALL (ids) GROUP BY c.id) x;
    IF gone IS NULL THEN
        RETURN 0;
    END IF;
    PERFORM FROM (
        SELECT b.budget_id FROM state.budgets b WHERE b.budget_id IN (SELECT jsonb_object_keys(gone))
        ORDER BY b.depth DESC, b.budget_id FOR NO KEY UPDATE) held;
    UPDATE state.budgets b SET past_tokens = b.past_tokens + (g.value ->> 'tokens')::bigint, past_cost = b.past_cost + (g.value ->> 'cost')::bigint,
           past_turns = b.past_turns + (g.value ->> 'turns')::bigint
    FROM jsonb_each(gone) g WHERE b.budget_id = g.key;
    RETURN 1;
END $$;

-- As before, and a turn that has a budget stays until that is closed and all turns of its tree are over, which may be charged to it.
CREATE OR REPLACE FUNCTION state.prunable_turns(before timestamptz) RETURNS TABLE (agent_turn_id text, project_id text)
LANGUAGE sql STABLE AS $$
    SELECT o.agent_turn_id, o.project_id FROM state.turn_outcomes o
    WHERE o.ended_at < before AND o.announced_at IS NOT NULL
      AND NOT EXISTS (SELECT FROM state.agent_inbox i WHERE i.agent_turn_id = o.agent_turn_id AND i.archived_at IS NULL OFFSET 0)
      AND NOT EXISTS (SELECT FROM state.pmo_batches b WHERE b.parent_agent_turn_id = o.agent_turn_id
                        AND (b.status = 'running' OR b.open_count > 0) OFFSET 0)
      AND NOT EXISTS (SELECT FROM state.pmo_batch_tasks t JOIN state.pmo_batches b ON b.batch_id = t.batch_id
                      WHERE t.current_agent_turn_id = o.agent_turn_id AND b.status = 'running' OFFSET 0)
      AND NOT EXISTS (SELECT FROM state.budgets g WHERE g.budget_id = o.agent_turn_id AND (g.closed_at IS NULL OR EXISTS (
          SELECT FROM state.turn_nodes me JOIN state.turn_nodes n ON n.root_turn_id = me.root_turn_id
          WHERE me.agent_turn_id = o.agent_turn_id AND NOT n.ended OFFSET 0)) OFFSET 0)
      AND NOT EXISTS (
          SELECT FROM state.thread_messages m WHERE m.agent_turn_id = o.agent_turn_id
            AND NOT EXISTS (SELECT FROM state.prunable_threads(before) t WHERE t.thread_id = m.thread_id OFFSET 0) OFFSET 0)
      AND (NOT EXISTS (
          SELECT FROM state.agent_state_pointers p
          WHERE p.agent_id = o.agent_id AND p.project_id = o.project_id AND p.last_output_box_id = o.output_box_id
            AND o.turn_epoch > 0 AND NOT EXISTS (
                SELECT FROM state.agent_inbox l JOIN state.turn_outcomes e ON e.agent_turn_id = l.agent_turn_id
                WHERE lower(l.payload ->> 'output_box_id') = o.output_box_id::text AND l.message_type IN ('turn', 'ui_action')
                  AND l.agent_id = o.agent_id AND l.project_id = o.project_id AND l.turn_epoch > o.turn_epoch OFFSET 0) OFFSET 0)
        OR EXISTS (
          SELECT FROM resource.project_agents a JOIN state.agent_state_head h ON h.agent_id = a.agent_id AND h.project_id = a.project_id
          WHERE a.agent_id = o.agent_id AND a.project_id = o.project_id AND a.metadata ->> 'agent_turn_id' = o.agent_turn_id
            AND h.queue_seq = 1 OFFSET 0))
$$;
