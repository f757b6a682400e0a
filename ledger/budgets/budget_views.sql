-- Budgets, as people look at them (protocol §15); no transition reads this.

-- name: list_budgets :many
-- The budgets of a project, the newest first, those older than a given one; of one channel and, if wanted, the
-- project's own, if a channel is given.
SELECT b.* FROM state.budgets b
WHERE b.project_id COLLATE "C" = :project_id
  AND (:channel_id::text IS NULL OR b.channel_id = :channel_id OR (:with_project::boolean AND b.kind <> 'turn'))
  AND (:kind::text IS NULL OR b.kind = :kind)
  AND (:status::text IS NULL OR :status = CASE WHEN b.closed_at IS NOT NULL THEN 'closed'
                                               WHEN b.ended_at IS NOT NULL THEN 'ended' ELSE 'open' END)
  AND (:after_id::text IS NULL
       OR (b.created_at, b.budget_id) < (
           SELECT a.created_at, a.budget_id FROM state.budgets a
           WHERE a.budget_id = :after_id AND a.project_id = :project_id
             AND (:channel_id::text IS NULL OR a.channel_id = :channel_id
                  OR (:with_project::boolean AND a.kind <> 'turn'))))
ORDER BY b.created_at DESC, b.budget_id DESC LIMIT :row_limit::int;

-- name: get_budget :opt
-- A budget of a project; of one channel and, if wanted, the project's own, if a channel is given.
SELECT b.* FROM state.budgets b
WHERE b.budget_id = :budget_id AND b.project_id = :project_id
  AND (:channel_id::text IS NULL OR b.channel_id = :channel_id OR (:with_project::boolean AND b.kind <> 'turn'));

-- name: is_raised :one
-- Whether a request of this name has raised a budget of the project.
SELECT EXISTS (SELECT FROM state.budget_raises r
               WHERE r.correlation_id = :correlation_id AND r.project_id = :project_id) AS raised;

-- name: list_budgets_of_turn :many
-- The budgets that a turn is charged to, the nearest first.
SELECT b.* FROM state.agent_inbox i
CROSS JOIN LATERAL (
    SELECT DISTINCT x.id FROM unnest(ARRAY['tokens', 'cost', 'turns']) d (name)
    CROSS JOIN LATERAL jsonb_array_elements_text(i.payload -> 'budget' -> d.name) x (id)) c
JOIN state.budgets b ON b.budget_id = c.id
WHERE i.agent_turn_id = :agent_turn_id AND i.project_id = :project_id
  AND i.message_type IN {turn_types} AND i.payload ? 'budget'
ORDER BY b.depth DESC, b.budget_id;

-- name: list_project_limits :many
-- What the turns of a project may spend together in a day or month.
SELECT p.period, p.max_tokens, p.max_cost, p.max_turns, p.updated_at, p.updated_by FROM state.project_budgets p
WHERE p.project_id = :project_id AND num_nonnulls(p.max_tokens, p.max_cost, p.max_turns) > 0 ORDER BY p.period;

-- name: list_charged_turns :many
-- The turns whose spending a budget has: of a turn's grant the turn and all below it, of a project's those that are
-- charged to it, or have their grant from it, and all below these.
WITH tops AS (
    SELECT b.agent_turn_id FROM state.budgets b
    WHERE b.budget_id = :budget_id AND b.project_id = :project_id AND b.kind = 'turn'
    UNION
    SELECT i.agent_turn_id FROM state.budgets b
    JOIN state.agent_inbox i ON i.project_id COLLATE "C" = b.project_id
        AND i.message_type IN {turn_types} AND i.payload ? 'budget'
        AND i.created_at AT TIME ZONE 'UTC' >= CASE b.kind WHEN 'day'
                                                         THEN to_date(split_part(b.budget_id, '/', 3), 'YYYY-MM-DD')
                                                    WHEN 'month'
                                                         THEN to_date(split_part(b.budget_id, '/', 3), 'YYYY-MM') END
    LEFT JOIN state.budgets g ON g.budget_id = i.agent_turn_id
    WHERE b.budget_id = :budget_id AND b.project_id = :project_id AND b.kind <> 'turn'
      AND (b.budget_id = ANY (g.from_tokens || g.from_cost || g.from_turns)
           OR ((i.payload -> 'budget' -> 'tokens') || (i.payload -> 'budget' -> 'cost')
                   || (i.payload -> 'budget' -> 'turns')) ? b.budget_id)
)
SELECT t.agent_turn_id FROM (SELECT x.agent_turn_id FROM tops x) t
UNION
SELECT w.agent_turn_id FROM tops CROSS JOIN LATERAL (
    WITH RECURSIVE walk AS (
        SELECT n.agent_turn_id FROM state.turn_nodes n
        WHERE n.parent_turn_id = tops.agent_turn_id AND n.project_id = :project_id
        UNION
        SELECT n.agent_turn_id FROM walk JOIN state.turn_nodes n ON n.parent_turn_id = walk.agent_turn_id
            AND n.project_id = :project_id)
    SELECT walk.agent_turn_id FROM walk) w;

-- name: list_turns_of_tree :many
-- The turns of the tree that a turn is in; a turn in no tree alone.
SELECT :agent_turn_id::text AS agent_turn_id
UNION
SELECT m.agent_turn_id FROM state.turn_nodes n JOIN state.turn_nodes m ON m.root_turn_id = n.root_turn_id
WHERE n.agent_turn_id = :agent_turn_id AND n.project_id = :project_id AND m.project_id = :project_id;
