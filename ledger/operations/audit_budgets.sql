-- The audit's rules on budgets: what each row counts is what the rows say that are charged to it. What went with turns
-- that retention has removed is in past_*. Of a window: budgets that began in it, and what turns reserved of them that
-- are over since, or in hand: no other turn can have. Grants are younger than what they are from, so those from before
-- it (but for an hour) charge none of these.

-- name: budgets_count_what_is_spent :many
-- Protocol §15: what a budget has spent is what the attempts that are charged to it used, or reserved where nobody
-- knows, and what the closed grants below it spent.
WITH reserved AS MATERIALIZED (SELECT r.* FROM {reservations_since} r),
granted AS MATERIALIZED (  -- a grant is younger than the budgets that it is from
    SELECT g.* FROM state.budgets g
    WHERE :since::timestamptz IS NULL OR g.created_at >= :since::timestamptz - interval '1 hour'
),
charged AS MATERIALIZED (
    SELECT t.id, sum(coalesce(r.used_tokens, r.tokens)) AS tokens,
           sum(r.tokens) FILTER (WHERE r.used_tokens IS NULL) AS unsettled_tokens,
           sum(greatest(r.used_tokens - r.tokens, 0)) AS beyond_tokens, 0::numeric AS cost,
           0::numeric AS unsettled_cost, 0::numeric AS beyond_cost, 0::numeric AS turns
    FROM reserved r CROSS JOIN unnest(r.tokens_at) t (id) WHERE r.status <> 'open' GROUP BY t.id
    UNION ALL
    SELECT t.id, 0, 0, 0, sum(coalesce(r.used_cost, r.cost)), sum(r.cost) FILTER (WHERE r.used_cost IS NULL),
           sum(greatest(r.used_cost - r.cost, 0)), 0
    FROM reserved r CROSS JOIN unnest(r.cost_at) t (id) WHERE r.status <> 'open' GROUP BY t.id
    UNION ALL
    SELECT t.id, g.spent_tokens, g.unsettled_tokens, greatest(g.spent_tokens - g.max_tokens, 0), 0, 0, 0, 0
    FROM granted g CROSS JOIN unnest(g.from_tokens) t (id) WHERE g.closed_at IS NOT NULL
    UNION ALL
    SELECT t.id, 0, 0, 0, g.spent_cost, g.unsettled_cost, greatest(g.spent_cost - g.max_cost, 0), 0
    FROM granted g CROSS JOIN unnest(g.from_cost) t (id) WHERE g.closed_at IS NOT NULL
    UNION ALL
    SELECT t.id, 0, 0, 0, 0, 0, 0, g.spent_turns
    FROM granted g CROSS JOIN unnest(g.from_turns) t (id) WHERE g.closed_at IS NOT NULL
),
known AS MATERIALIZED (
    SELECT c.id, sum(c.tokens) AS tokens, sum(c.unsettled_tokens) AS unsettled_tokens,
           sum(c.beyond_tokens) AS beyond_tokens, sum(c.cost) AS cost,
           sum(c.unsettled_cost) AS unsettled_cost, sum(c.beyond_cost) AS beyond_cost, sum(c.turns) AS turns
    FROM charged c GROUP BY c.id
)
SELECT jsonb_build_object('project_id', b.project_id, 'agent_turn_id', b.agent_turn_id,
                          'budget_id', b.budget_id) AS ids,
       format('it counts %s spent, %s unsettled and %s beyond of its %s, and its rows say %s, %s and %s', d.spent,
              d.unsettled, d.beyond, d.dimension,
              d.known, d.known_unsettled, d.known_beyond) AS detail
FROM state.budgets b LEFT JOIN known k ON k.id = b.budget_id
CROSS JOIN LATERAL (VALUES
    ('tokens', b.spent_tokens, b.unsettled_tokens, b.beyond_tokens, b.past_tokens, coalesce(k.tokens, 0),
     coalesce(k.unsettled_tokens, 0),
     coalesce(k.beyond_tokens, 0)),
    ('cost', b.spent_cost, b.unsettled_cost, b.beyond_cost, b.past_cost, coalesce(k.cost, 0),
     coalesce(k.unsettled_cost, 0), coalesce(k.beyond_cost, 0)),
    ('turns', b.spent_turns, 0, 0, greatest(b.spent_turns - coalesce(k.turns, 0), b.past_turns,
                                            CASE WHEN b.kind = 'turn' AND b.max_turns IS NOT NULL
                                                                                               THEN 1 ELSE 0 END),
     coalesce(k.turns, 0), 0, 0)
) d (dimension, spent, unsettled, beyond, past, known, known_unsettled, known_beyond)
WHERE (d.spent <> d.known + d.past OR d.unsettled < d.known_unsettled OR d.beyond < d.known_beyond
       OR (d.past = 0 AND (d.unsettled, d.beyond) <> (d.known_unsettled, d.known_beyond)))
  AND (:since::timestamptz IS NULL OR b.created_at >= :since)
  AND (:project_id::text IS NULL OR b.project_id = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: budgets_reserve_what_is_open :many
-- Protocol §15: what a budget has reserved is what its open attempts have, and the whole of the grants below it that
-- are not closed.
WITH reserved AS MATERIALIZED (SELECT r.* FROM {reservations_since} r),
granted AS MATERIALIZED (  -- a grant is younger than the budgets that it is from
    SELECT g.* FROM state.budgets g
    WHERE :since::timestamptz IS NULL OR g.created_at >= :since::timestamptz - interval '1 hour'
),
charged AS MATERIALIZED (
    SELECT t.id, r.tokens, 0::bigint AS cost, 0::bigint AS turns
    FROM reserved r CROSS JOIN unnest(r.tokens_at) t (id) WHERE r.status = 'open'
    UNION ALL
    SELECT t.id, 0, r.cost, 0 FROM reserved r CROSS JOIN unnest(r.cost_at) t (id) WHERE r.status = 'open'
    UNION ALL
    SELECT t.id, g.max_tokens, 0, 0 FROM granted g CROSS JOIN unnest(g.from_tokens) t (id) WHERE g.closed_at IS NULL
    UNION ALL
    SELECT t.id, 0, g.max_cost, 0 FROM granted g CROSS JOIN unnest(g.from_cost) t (id) WHERE g.closed_at IS NULL
    UNION ALL
    SELECT t.id, 0, 0, g.max_turns FROM granted g CROSS JOIN unnest(g.from_turns) t (id) WHERE g.closed_at IS NULL
),
known AS MATERIALIZED (SELECT c.id, sum(c.tokens) AS tokens, sum(c.cost) AS cost, sum(c.turns) AS turns
                       FROM charged c GROUP BY c.id)
SELECT jsonb_build_object('project_id', b.project_id, 'agent_turn_id', b.agent_turn_id,
                          'budget_id', b.budget_id) AS ids,
       format('it has %s tokens, %s micro-dollars and %s turns reserved, and its rows say %s, %s and %s',
              b.reserved_tokens, b.reserved_cost,
              b.reserved_turns, coalesce(k.tokens, 0), coalesce(k.cost, 0), coalesce(k.turns, 0)) AS detail
FROM state.budgets b LEFT JOIN known k ON k.id = b.budget_id
WHERE (b.reserved_tokens, b.reserved_cost, b.reserved_turns) <> (coalesce(k.tokens, 0),
                                                                 coalesce(k.cost, 0), coalesce(k.turns, 0))
  AND (:since::timestamptz IS NULL OR b.created_at >= :since)
  AND (:project_id::text IS NULL OR b.project_id = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: budgets_are_not_exceeded :many
-- Protocol §15: nobody is given more than a budget has: only what models took beyond their reservations is more; and
-- nothing has gone below what an operator lowered.
SELECT jsonb_build_object('project_id', b.project_id, 'agent_turn_id', b.agent_turn_id,
                          'budget_id', b.budget_id) AS ids,
       format('of %s %s it has spent %s, %s of it beyond, and reserved %s', d.had, d.dimension,
              d.spent, d.beyond, d.reserved) AS detail
FROM state.budgets b CROSS JOIN LATERAL (VALUES
    ('tokens', b.max_tokens, b.spent_tokens, b.reserved_tokens, b.beyond_tokens),
    ('cost', b.max_cost, b.spent_cost, b.reserved_cost, b.beyond_cost),
    ('turns', b.max_turns, b.spent_turns, b.reserved_turns, 0)) d (dimension, had, spent, reserved, beyond)
WHERE d.spent + d.reserved > d.had + d.beyond AND b.lowered_at IS NULL
  AND (:since::timestamptz IS NULL OR b.created_at >= :since)
  AND (:project_id::text IS NULL OR b.project_id = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: grants_are_what_was_given :many
-- Protocol §15: a turn's budget has what its enqueue granted, and what operators raised it by.
SELECT jsonb_build_object('project_id', b.project_id, 'agent_turn_id', b.agent_turn_id,
                          'budget_id', b.budget_id) AS ids,
       format('it has %s %s, was granted %s, and its raises make %s', d.had, d.dimension, d.granted, d.raised) AS detail
FROM state.budgets b
CROSS JOIN LATERAL (SELECT i.payload #> '{budget,grant}' AS given FROM state.agent_inbox i
                    WHERE i.agent_turn_id = b.agent_turn_id AND i.message_type IN {turn_types} {by_key}) g
CROSS JOIN LATERAL (SELECT coalesce(sum(r.max_tokens), 0) AS tokens, coalesce(sum(r.max_cost), 0) AS cost,
                           coalesce(sum(r.max_turns), 0) AS turns
                    FROM state.budget_raises r WHERE r.budget_id = b.budget_id) s
CROSS JOIN LATERAL (VALUES
    ('tokens', b.max_tokens, (g.given ->> 'max_tokens')::bigint, s.tokens),
    ('cost', b.max_cost, (g.given ->> 'max_cost')::bigint, s.cost),
    ('turns', b.max_turns, (g.given ->> 'max_turns')::bigint, s.turns)) d (dimension, had, granted, raised)
WHERE b.kind = 'turn' AND g.given IS NOT NULL AND d.had IS DISTINCT FROM d.granted + d.raised
  AND (:since::timestamptz IS NULL OR b.created_at >= :since)
  AND (:project_id::text IS NULL OR b.project_id = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: closed_budgets_gave_back_the_rest :many
-- Protocol §15: a grant is closed when its turn is over and nothing of it is reserved, and not before.
SELECT jsonb_build_object('project_id', b.project_id, 'agent_turn_id', b.agent_turn_id,
                          'budget_id', b.budget_id) AS ids,
       CASE WHEN b.closed_at IS NULL THEN 'its turn is over, nothing of it is reserved, and it is open'
            ELSE format('it is closed and has %s %s reserved', d.reserved, d.dimension) END AS detail
FROM state.budgets b CROSS JOIN LATERAL (VALUES
    ('tokens', b.reserved_tokens, b.from_tokens), ('cost', b.reserved_cost, b.from_cost),
    ('turns', b.reserved_turns, b.from_turns)
) d (dimension, reserved, came_from)
WHERE (CASE WHEN b.closed_at IS NOT NULL THEN d.reserved > 0 AND d.came_from <> '{}'
            ELSE b.ended_at IS NOT NULL AND b.reserved_tokens + b.reserved_cost + b.reserved_turns = 0 END)
  AND (:since::timestamptz IS NULL OR b.created_at >= :since)
  AND (:project_id::text IS NULL OR b.project_id = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: turns_that_are_over_hold_nothing :many
-- Protocol §15: a turn that is over has no open reservation, and its grant knows that it is over; one that is not over
-- has a grant that has not ended.
SELECT jsonb_build_object('project_id', x.project_id, 'agent_turn_id', x.agent_turn_id) AS ids, x.detail
FROM (
    SELECT r.project_id, r.agent_turn_id, r.created_at,
           format('the turn is over, and attempt %s of step %s is open', r.attempt, r.step) AS detail
    FROM {reservations_since} r JOIN state.turn_outcomes o ON o.agent_turn_id = r.agent_turn_id WHERE r.status = 'open'
    UNION ALL
    SELECT b.project_id, b.agent_turn_id, b.created_at,
           CASE WHEN b.ended_at IS NULL THEN 'the turn is over, and its budget does not know'
                                                             ELSE 'the turn is not over, and its budget has ended' END
    FROM state.budgets b LEFT JOIN state.turn_outcomes o ON o.agent_turn_id = b.agent_turn_id
    WHERE b.kind = 'turn' AND (b.ended_at IS NULL) = (o.agent_turn_id IS NOT NULL)
      AND EXISTS (SELECT FROM state.agent_inbox i WHERE i.agent_turn_id = b.agent_turn_id {by_key})) x
WHERE (:since::timestamptz IS NULL OR x.created_at >= :since)
  AND (:project_id::text IS NULL OR x.project_id = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: turns_are_charged_somewhere :many
-- Protocol §15: the budgets that a turn names, which is not over, are there, its own among them, and count at least the
-- turns that name them.
SELECT jsonb_build_object('project_id', i.project_id, 'agent_turn_id', i.agent_turn_id, 'budget_id', n.id) AS ids,
       CASE WHEN b.budget_id IS NULL THEN 'the turn is charged to it, and it is not there'
            ELSE 'it counts fewer turns than name it' END AS detail
FROM state.agent_inbox i CROSS JOIN LATERAL (
    SELECT t.id, 'tokens' AS dimension FROM jsonb_array_elements_text(i.payload #> '{budget,tokens}') t (id)
    UNION ALL SELECT t.id, 'cost' FROM jsonb_array_elements_text(i.payload #> '{budget,cost}') t (id)
    UNION ALL SELECT t.id, 'turns' FROM jsonb_array_elements_text(i.payload #> '{budget,turns}') t (id)
    UNION ALL SELECT i.agent_turn_id, 'own' WHERE i.payload -> 'budget' ? 'grant') n
LEFT JOIN state.budgets b ON b.budget_id = n.id
WHERE i.payload ? 'budget' AND i.message_type IN {turn_types}
  AND ((b.budget_id IS NULL AND NOT EXISTS (SELECT FROM state.turn_outcomes o
                                            WHERE o.agent_turn_id = i.agent_turn_id {by_key}))
       OR (n.dimension = 'turns' AND b.spent_turns = 0 AND b.closed_at IS NULL))
  AND (:since::timestamptz IS NULL OR i.created_at >= :since)
  AND (:project_id::text IS NULL OR i.project_id = :project_id)
ORDER BY ids LIMIT :row_limit::int;
