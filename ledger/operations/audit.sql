-- The audit's rules on heads, turns and outcomes (docs/operations.md). Each returns the ids of the rows that break it
-- and says what is wrong, without content. Rules on turns read the rows made since a moment (:since, and :since_id for
-- ids that sort by time) of one project, or all rows; heads and live rows are always read. A row that L0 enqueued has a
-- request_digest; a row without one was written by others, and is no turn until it is leased.

-- name: one_active_turn :many
-- Protocol §2.1: the turn on a head has an inbox row of the same agent, project and epoch, and is on no other head.
SELECT jsonb_build_object('project_id', h.project_id, 'agent_id', h.agent_id,
                          'agent_turn_id', h.active_agent_turn_id) AS ids,
       CASE WHEN h.heads > 1 THEN format('it is on %s heads', h.heads)
            ELSE format('its head, at epoch %s, names no inbox row of this turn and epoch', h.turn_epoch) END AS detail
FROM (SELECT *, count(*) OVER (PARTITION BY active_agent_turn_id) AS heads
      FROM state.agent_state_head WHERE status <> 'idle') h
LEFT JOIN state.agent_inbox i ON i.agent_turn_id = h.active_agent_turn_id
    AND i.inbox_id = coalesce(h.active_inbox_id, i.inbox_id) AND i.agent_id = h.agent_id
    AND i.project_id = h.project_id AND i.turn_epoch = h.turn_epoch AND i.message_type IN {turn_types}
WHERE (i.inbox_id IS NULL OR h.heads > 1) AND (:project_id::text IS NULL OR h.project_id = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: one_head_a_box :many
-- Protocol §2.1: no two heads have the same output box.
SELECT jsonb_build_object('box_id', h.output_box_id, 'agent_id', min(h.agent_id),
                          'other_agent_id', max(h.agent_id)) AS ids,
       format('%s heads hold this output box', count(*)) AS detail
FROM state.agent_state_head h
WHERE h.output_box_id IS NOT NULL AND (:project_id::text IS NULL OR h.project_id = :project_id)
GROUP BY h.output_box_id HAVING count(*) > 1
ORDER BY ids LIMIT :row_limit::int;

-- name: head_agrees_with_its_row :many
-- Protocol §3: boxes, channel, trace, parent step and depth of a head are those that its inbox row names; the output
-- box is the one that the turn's latest compaction made, if there is one.
SELECT jsonb_build_object('project_id', h.project_id, 'agent_id', h.agent_id,
                          'agent_turn_id', h.active_agent_turn_id) AS ids,
       'head and inbox row differ in ' || concat_ws(', ',
           CASE WHEN h.profile_box_id IS DISTINCT FROM state.as_uuid(i.payload ->> 'profile_box_id')
                     THEN 'profile box' END,
           CASE WHEN h.context_box_id IS DISTINCT FROM state.as_uuid(i.payload ->> 'context_box_id')
                     THEN 'context box' END,
           CASE WHEN h.output_box_id IS DISTINCT FROM state.as_uuid({box_of_turn(i, NULL::int)}) THEN 'output box' END,
           CASE WHEN h.active_channel_id IS DISTINCT FROM i.channel_id THEN 'channel' END,
           CASE WHEN h.trace_id IS DISTINCT FROM split_part(i.context_headers ->> 'traceparent',
                                                            '-', 2) THEN 'trace' END,
           CASE WHEN h.parent_step_id IS DISTINCT FROM i.context_headers ->> 'CG-Parent-Step-Id' THEN 'parent step' END,
           CASE WHEN h.active_recursion_depth <> coalesce(state.as_count(i.context_headers ->> 'CG-Recursion-Depth'), 0)
                THEN 'depth' END) AS detail
FROM state.agent_state_head h JOIN state.agent_inbox i ON i.inbox_id = h.active_inbox_id
    AND i.agent_turn_id = h.active_agent_turn_id
WHERE h.status <> 'idle' AND (:project_id::text IS NULL OR h.project_id = :project_id)
  AND (h.profile_box_id, h.context_box_id, h.output_box_id, h.active_channel_id, h.trace_id,
       h.parent_step_id, h.active_recursion_depth)
      IS DISTINCT FROM
      (state.as_uuid(i.payload ->> 'profile_box_id'), state.as_uuid(i.payload ->> 'context_box_id'),
       state.as_uuid({box_of_turn(i, NULL::int)}), i.channel_id,
       split_part(i.context_headers ->> 'traceparent', '-', 2), i.context_headers ->> 'CG-Parent-Step-Id',
       coalesce(state.as_count(i.context_headers ->> 'CG-Recursion-Depth'), 0))
ORDER BY ids LIMIT :row_limit::int;

-- name: begun_rows_are_final :many
-- Protocol §7.1: the inbox row of a leased turn is live until the turn begins, and final from then on. A row that
-- breaks the protocol is final at once; the fence that ends its turn follows within :grace_seconds.
SELECT jsonb_build_object('project_id', h.project_id, 'agent_id', h.agent_id, 'agent_turn_id', h.active_agent_turn_id,
                          'inbox_id', i.inbox_id) AS ids,
       format('the head is %s and its inbox row %s', h.status, i.status) AS detail
FROM state.agent_state_head h JOIN state.agent_inbox i ON i.inbox_id = h.active_inbox_id
    AND i.agent_turn_id = h.active_agent_turn_id
WHERE h.status <> 'idle' AND (h.status = 'dispatched') <> (i.archived_at IS NULL)
  AND NOT (i.status = 'error' AND i.archived_at >= now() - make_interval(secs => :grace_seconds::float8))
  AND (:project_id::text IS NULL OR h.project_id = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: idle_heads_hold_nothing :many
-- Protocol §4.2: an idle head has no data of a turn, except the profile box, which a UI worker leaves there.
SELECT jsonb_build_object('project_id', h.project_id, 'agent_id', h.agent_id, 'agent_turn_id', h.active_agent_turn_id,
                          'inbox_id', h.active_inbox_id, 'box_id', h.output_box_id) AS ids,
       'the head is idle and holds something of a turn' AS detail
FROM state.agent_state_head h
WHERE h.status = 'idle' AND (:project_id::text IS NULL OR h.project_id = :project_id)
  AND (num_nonnulls(h.active_agent_turn_id, h.active_inbox_id, h.active_channel_id, h.context_box_id, h.output_box_id,
                    h.trace_id, h.parent_step_id, h.resume_deadline, h.expecting_correlation_id, h.started_at) > 0
       OR (h.waiting_tool_count, h.restart_count, h.step_count, h.step_attempt, h.model_failures,
           h.output_position) <> (0, 0, 0, 0, 0, 0))
ORDER BY ids LIMIT :row_limit::int;

-- name: restarts_are_bounded :many
-- Protocol §8 engine: the workflow of a turn is started again at most three times.
SELECT jsonb_build_object('project_id', h.project_id, 'agent_id', h.agent_id,
                          'agent_turn_id', h.active_agent_turn_id) AS ids,
       format('its workflow was started again %s times', h.restart_count) AS detail
FROM state.agent_state_head h
WHERE h.restart_count > 3 AND (:project_id::text IS NULL OR h.project_id = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: no_outcome_in_hand :many
-- Protocol §2.3: an active turn has no outcome.
SELECT jsonb_build_object('project_id', h.project_id, 'agent_id', h.agent_id,
                          'agent_turn_id', h.active_agent_turn_id) AS ids,
       format('the head is %s, and the turn has its outcome %s', h.status, o.status) AS detail
FROM state.agent_state_head h JOIN state.turn_outcomes o ON o.agent_turn_id = h.active_agent_turn_id
WHERE h.status <> 'idle' AND (:project_id::text IS NULL OR h.project_id = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: every_turn_is_somewhere :many
-- Protocol §2.5: a turn is either queued, or on the head of its agent, or has an outcome.
SELECT jsonb_build_object('project_id', t.project_id, 'agent_id', t.agent_id, 'agent_turn_id', t.agent_turn_id) AS ids,
       concat_ws(', ', 'its inbox row is ' || t.status, CASE WHEN h.agent_id IS NOT NULL THEN 'it is on a head' END,
                 coalesce('it has the outcome ' || o.status, 'it has no outcome')) AS detail
FROM (
    SELECT i.* FROM state.agent_inbox i WHERE i.message_type IN {turn_types}
      AND (:since::timestamptz IS NULL OR i.created_at >= :since)
      AND (:project_id::text IS NULL OR i.project_id COLLATE "C" = :project_id)
) t
LEFT JOIN state.turn_outcomes o ON o.agent_turn_id = t.agent_turn_id AND o.project_id = t.project_id
LEFT JOIN state.agent_state_head h ON h.active_agent_turn_id = t.agent_turn_id
    AND h.agent_id = t.agent_id AND h.project_id = t.project_id
CROSS JOIN LATERAL (
    SELECT (t.status = 'queued')::int + (h.agent_id IS NOT NULL)::int + (
        o.agent_turn_id IS NOT NULL)::int AS found) places
WHERE places.found > 1 OR (places.found = 0 AND t.request_digest IS NOT NULL)
ORDER BY ids LIMIT :row_limit::int;

-- name: one_turn_a_row :many
-- Protocol §2.5: one enqueue is one turn: no two inbox rows of L0 have the same turn.
SELECT jsonb_build_object('project_id', t.project_id, 'agent_turn_id', t.agent_turn_id, 'inbox_id', t.inbox_id,
                          'other_inbox_id', x.inbox_id) AS ids, 'two inbox rows enqueue this turn' AS detail
FROM state.agent_inbox t
JOIN state.agent_inbox x ON x.agent_turn_id = t.agent_turn_id AND x.inbox_id < t.inbox_id
WHERE t.message_type IN {turn_types} AND t.request_digest IS NOT NULL
  AND x.message_type IN {turn_types} AND x.request_digest IS NOT NULL
  AND (:since::timestamptz IS NULL OR t.created_at >= :since)
  AND (:project_id::text IS NULL OR t.project_id COLLATE "C" = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: epoch_of_two_turns :many
-- Protocol §2.5: an epoch of an agent is one lease, so it belongs to one turn.
SELECT jsonb_build_object('project_id', t.project_id, 'agent_id', t.agent_id, 'agent_turn_id', min(t.agent_turn_id),
                          'other_agent_turn_id', max(t.agent_turn_id)) AS ids,
       format('%s turns have epoch %s', count(*), t.turn_epoch) AS detail
FROM state.agent_inbox t
WHERE t.message_type IN {turn_types} AND t.request_digest IS NOT NULL AND t.turn_epoch > 0
  AND (:since::timestamptz IS NULL OR t.created_at >= :since)
  AND (:project_id::text IS NULL OR t.project_id COLLATE "C" = :project_id)
GROUP BY t.project_id, t.agent_id, t.turn_epoch HAVING count(*) > 1
ORDER BY ids LIMIT :row_limit::int;

-- name: epoch_of_another_era :many
-- Protocol §16: a turn in hand has an epoch of the ledger's era, and so has one that ended in it. A minute's difference
-- between the clocks of two servers is allowed for.
SELECT jsonb_build_object('project_id', t.project_id, 'agent_id', t.agent_id, 'agent_turn_id', t.turn) AS ids,
       format('it is %s at epoch %s, and the era''s epochs begin at %s', t.how, t.turn_epoch, t.epoch_floor) AS detail
FROM (
    SELECT h.project_id, h.agent_id, h.active_agent_turn_id AS turn, h.turn_epoch, 'in hand' AS how, e.epoch_floor
    FROM state.ledger_era e JOIN state.agent_state_head h ON h.turn_epoch < e.epoch_floor AND h.status <> 'idle'
    UNION ALL
    SELECT o.project_id, o.agent_id, o.agent_turn_id, o.turn_epoch, 'over', e.epoch_floor
    FROM state.ledger_era e JOIN state.turn_outcomes o ON o.turn_epoch < e.epoch_floor
        AND o.ended_at > e.begun_at + interval '1 min'
    WHERE o.turn_epoch > 0 AND (:since_id::text IS NULL OR o.agent_turn_id >= :since_id)
) t
WHERE :project_id::text IS NULL OR t.project_id = :project_id
ORDER BY ids LIMIT :row_limit::int;

-- name: epoch_beyond_its_head :many
-- Protocol §2.5: no turn has an epoch higher than its agent's head.
SELECT jsonb_build_object('project_id', t.project_id, 'agent_id', t.agent_id, 'agent_turn_id', t.agent_turn_id) AS ids,
       format('the turn has epoch %s, its head %s', t.turn_epoch,
              coalesce(h.turn_epoch::text, 'is not there')) AS detail
FROM state.agent_inbox t
LEFT JOIN state.agent_state_head h ON h.agent_id = t.agent_id AND h.project_id = t.project_id
WHERE t.message_type IN {turn_types} AND t.request_digest IS NOT NULL
  AND (h.agent_id IS NULL OR t.turn_epoch > h.turn_epoch)
  AND (:since::timestamptz IS NULL OR t.created_at >= :since)
  AND (:project_id::text IS NULL OR t.project_id COLLATE "C" = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: first_come_first_served :many
-- Protocol §3: turns of an agent with boxes that no other agent uses ran in the order of their enqueues, with rising
-- epochs, but for those that took the place of another. For a window only boxes that were made in it are checked:
-- others may have been shared before.
SELECT jsonb_build_object('project_id', t.project_id, 'agent_id', t.agent_id, 'agent_turn_id', t.agent_turn_id) AS ids,
       format('it has epoch %s, and a turn enqueued before it %s', t.turn_epoch, t.previous) AS detail
FROM (
    SELECT s.*, lag(s.turn_epoch) OVER (PARTITION BY s.project_id, s.agent_id ORDER BY s.created_at) AS previous
    FROM (
        SELECT i.project_id, i.agent_id, i.agent_turn_id, i.turn_epoch, i.created_at,
               i.payload ->> 'output_box_id' AS box,
               min(i.agent_id) OVER shared <> max(i.agent_id) OVER shared AS is_shared
        FROM state.agent_inbox i
        WHERE i.message_type = 'turn' AND i.request_digest IS NOT NULL AND i.payload #>> '{multitask,ahead_of}' IS NULL
          AND (:since::timestamptz IS NULL OR i.created_at >= :since)
          AND (:project_id::text IS NULL OR i.project_id COLLATE "C" = :project_id)
        WINDOW shared AS (PARTITION BY i.payload ->> 'output_box_id')
    ) s
    WHERE s.turn_epoch > 0 AND NOT s.is_shared AND (:since::timestamptz IS NULL OR EXISTS (
        SELECT FROM public.boxes b WHERE b.box_id = state.as_uuid(s.box) AND b.created_at >= :since))
) t
WHERE t.turn_epoch <= t.previous
ORDER BY ids LIMIT :row_limit::int;

-- name: no_idle_head_with_a_free_turn :many
-- Protocol §8 stranded: no agent is idle for longer than :stranded_seconds while it has a turn that could run, unless
-- it is paused.
SELECT jsonb_build_object('project_id', q.project_id, 'agent_id', q.agent_id, 'agent_turn_id', q.agent_turn_id) AS ids,
       'it is queued, its agent idle and its output box free' AS detail
FROM state.queued_turns q JOIN state.agent_state_head h ON h.agent_id = q.agent_id AND h.project_id = q.project_id
CROSS JOIN LATERAL (SELECT now() - make_interval(secs => :stranded_seconds::float8) AS late) x
WHERE h.status = 'idle' AND h.paused_at_epoch IS NULL
  AND NOT EXISTS (SELECT FROM state.agent_state_head b WHERE b.output_box_id = q.output_box_id)
  AND h.updated_at < x.late AND q.created_at < x.late
  AND NOT EXISTS (SELECT FROM state.turn_outcomes o WHERE o.output_box_id = q.output_box_id AND o.ended_at >= x.late)
  AND (:project_id::text IS NULL OR q.project_id = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: paused_agents_take_no_lease :many
-- Protocol §3: an agent of the status paused, and no other, has a paused head, which holds no turn that was leased
-- since.
SELECT jsonb_build_object('project_id', a.project_id, 'agent_id', a.agent_id,
                          'agent_turn_id', h.active_agent_turn_id) AS ids,
       CASE WHEN h.paused_at_epoch IS NULL THEN 'its status is paused, and its head is not'
            WHEN a.status NOT IN ('paused', 'inactive')
                 THEN format('its status is %s, and its head is paused', a.status)
            ELSE format('it was paused at epoch %s, and has a turn of epoch %s in hand', h.paused_at_epoch,
                        h.turn_epoch) END AS detail
FROM resource.project_agents a LEFT JOIN state.agent_state_head h ON h.agent_id = a.agent_id
    AND h.project_id = a.project_id
WHERE ((a.status = 'paused' AND h.paused_at_epoch IS NULL)
       OR (h.paused_at_epoch IS NOT NULL AND (a.status NOT IN ('paused', 'inactive')
                                              OR (h.status <> 'idle' AND h.turn_epoch > h.paused_at_epoch))))
  AND (:project_id::text IS NULL OR a.project_id COLLATE "C" = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: statuses_have_their_edges :many
-- Protocol §4.1: the last identity edge that pauses, resumes or retires an agent is the one of its status.
SELECT jsonb_build_object('project_id', a.project_id, 'agent_id', a.agent_id) AS ids,
       format('its status is %s, and its last identity edge %s', a.status,
              coalesce('says ' || e.action, 'is missing')) AS detail
FROM resource.project_agents a
LEFT JOIN (
    SELECT DISTINCT ON (x.target_agent_id, x.project_id) x.target_agent_id, x.project_id, x.action
    FROM state.identity_edges x
    WHERE x.action IN ('pause', 'resume', 'retire')
    ORDER BY x.target_agent_id, x.project_id, x.created_at DESC, x.edge_id DESC
) e ON e.target_agent_id = a.agent_id AND e.project_id = a.project_id
WHERE (a.status IN ('paused', 'retired')
       AND e.action IS DISTINCT FROM CASE a.status WHEN 'paused' THEN 'pause' ELSE 'retire' END)
  AND (:project_id::text IS NULL OR a.project_id COLLATE "C" = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: queued_turns_can_be_leased :many
-- Protocol §4.4: a queued row has next_retry_at infinity and epoch 0, and its agent has a head and is in the roster.
SELECT jsonb_build_object('project_id', i.project_id, 'agent_id', i.agent_id, 'agent_turn_id', i.agent_turn_id,
                          'inbox_id', i.inbox_id) AS ids,
       'queued, but ' || concat_ws(', ', CASE WHEN i.next_retry_at <> 'infinity' THEN 'not at infinity' END,
           CASE WHEN i.turn_epoch <> 0 THEN 'with an epoch' END, CASE WHEN h.agent_id IS NULL THEN 'without a head' END,
           CASE WHEN a.agent_id IS NULL THEN 'of no agent' END) AS detail
FROM state.agent_inbox i
LEFT JOIN state.agent_state_head h ON h.agent_id = i.agent_id AND h.project_id = i.project_id
LEFT JOIN resource.project_agents a ON a.agent_id = i.agent_id AND a.project_id = i.project_id
WHERE i.archived_at IS NULL AND i.status = 'queued'
  AND (i.next_retry_at <> 'infinity' OR i.turn_epoch <> 0 OR h.agent_id IS NULL OR a.agent_id IS NULL)
  AND (:project_id::text IS NULL OR i.project_id = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: outcome_without_a_turn :many
-- Protocol §2.3: each outcome names the inbox row of its turn.
SELECT jsonb_build_object('project_id', o.project_id, 'agent_id', o.agent_id, 'agent_turn_id', o.agent_turn_id,
                          'inbox_id', o.inbox_id) AS ids,
       'the outcome names no inbox row of its turn and agent' AS detail
FROM state.turn_outcomes o
LEFT JOIN state.agent_inbox i ON i.inbox_id = o.inbox_id AND i.agent_turn_id = o.agent_turn_id
    AND i.project_id = o.project_id
    AND i.agent_id = o.agent_id AND i.message_type IN {turn_types}
WHERE i.inbox_id IS NULL AND (:since_id::text IS NULL OR o.agent_turn_id >= :since_id)
  AND (:project_id::text IS NULL OR o.project_id = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: outcome_agrees_with_its_row :many
-- Protocol §4.2: an outcome has the epoch, channel, trace and output box (or that of the latest compaction) of its
-- inbox row, and that is final: consumed if the turn began, else skipped. A turn that ended in the queue may have a box
-- of its own.
SELECT jsonb_build_object('project_id', t.project_id, 'agent_id', t.agent_id, 'agent_turn_id', t.agent_turn_id,
                          'inbox_id', t.inbox_id) AS ids,
       format('the outcome is %s, the row %s, and they differ in %s', o.status, t.status, concat_ws(', ',
           CASE WHEN t.archived_at IS NULL THEN 'being final' END,
           CASE WHEN o.turn_epoch <> t.turn_epoch THEN 'epoch' END,
           CASE WHEN o.channel_id <> t.channel_id THEN 'channel' END,
           CASE WHEN o.trace_id IS DISTINCT FROM split_part(t.context_headers ->> 'traceparent',
                                                            '-', 2) THEN 'trace' END,
           CASE WHEN o.turn_epoch > 0 AND o.output_box_id::text IS DISTINCT FROM {box_of_turn(t, NULL::int)}
                     THEN 'output box' END,
           CASE WHEN t.status <> 'error' AND (t.status = 'consumed') <> (o.started_at IS NOT NULL)
                     THEN 'having begun' END)) AS detail
FROM state.agent_inbox t JOIN state.turn_outcomes o ON o.agent_turn_id = t.agent_turn_id AND o.agent_id = t.agent_id
WHERE t.message_type IN {turn_types}
  AND (t.archived_at IS NULL OR o.turn_epoch <> t.turn_epoch OR o.channel_id <> t.channel_id
       OR o.trace_id IS DISTINCT FROM split_part(t.context_headers ->> 'traceparent', '-', 2)
       OR (o.turn_epoch > 0 AND o.output_box_id::text IS DISTINCT FROM {box_of_turn(t, NULL::int)})
       OR (t.status <> 'error' AND (t.status = 'consumed') <> (o.started_at IS NOT NULL)))
  AND (:since::timestamptz IS NULL OR t.created_at >= :since)
  AND (:project_id::text IS NULL OR t.project_id COLLATE "C" = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: unannounced :many
-- Protocol §2.4: the task event of a turn that has been over for :grace_seconds is in the event stream.
SELECT jsonb_build_object('project_id', o.project_id, 'agent_id', o.agent_id, 'agent_turn_id', o.agent_turn_id) AS ids,
       'its task event is not known to be in the event stream' AS detail
FROM state.turn_outcomes o
WHERE o.announced_at IS NULL AND o.ended_at < now() - make_interval(secs => :grace_seconds::float8)
  AND (:project_id::text IS NULL OR o.project_id = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: pointers_name_the_last_box :many
-- Protocol §4.2: an agent's pointer names the output box of its last turn that was on the head, or what a compaction, a
-- rollback (a box that came of it) or box_replace has put in its place, or a box of a UI worker's own turn (protocol
-- §10.12). Of a window only where no turn from before it can have been leased since; a UI worker's row is leased within
-- a day.
SELECT jsonb_build_object('project_id', x.project_id, 'agent_id', x.agent_id, 'agent_turn_id', x.agent_turn_id,
                          'box_id', x.last_output_box_id) AS ids,
       format('the pointer does not name the box of the last turn, %s',
              coalesce(x.output_box_id::text, 'of which there is none')) AS detail
FROM (
    SELECT coalesce(o.project_id, p.project_id) AS project_id, coalesce(o.agent_id, p.agent_id) AS agent_id,
           o.agent_turn_id, o.turn_epoch, o.output_box_id, o.is_rolled_back, p.last_output_box_id,
           p.replaced_output_box_id
    FROM (
        SELECT DISTINCT ON (o.project_id, o.agent_id) o.project_id, o.agent_id, o.agent_turn_id,
               o.turn_epoch, o.output_box_id, o.stats ? 'rolled_back_by' AS is_rolled_back
        FROM state.turn_outcomes o
        WHERE o.turn_epoch > 0 AND (:since_id::text IS NULL OR o.agent_turn_id >= :since_id)
          AND (:project_id::text IS NULL OR o.project_id = :project_id)
        ORDER BY o.project_id, o.agent_id, o.turn_epoch DESC
    ) o
    FULL JOIN state.agent_state_pointers p ON p.agent_id = o.agent_id AND p.project_id = o.project_id
) x
LEFT JOIN state.agent_state_head h ON h.agent_id = x.agent_id AND h.project_id = x.project_id
WHERE x.last_output_box_id IS DISTINCT FROM x.output_box_id
  AND (x.last_output_box_id = x.replaced_output_box_id) IS NOT TRUE
  AND NOT (x.agent_turn_id IS NULL AND EXISTS (  -- its last turn may have been removed since the pointer has moved
      SELECT FROM public.boxes b WHERE b.box_id = x.last_output_box_id AND b.parent_ids <> '{}'))
  AND NOT EXISTS (
      WITH RECURSIVE line AS (
          SELECT z.box_id, z.is_old
          FROM (VALUES (x.last_output_box_id, false), (x.output_box_id, true)) z (box_id, is_old)
          UNION
          SELECT p.box_id, l.is_old FROM line l JOIN public.boxes b ON b.box_id = l.box_id
          CROSS JOIN unnest(b.parent_ids) p (box_id)
          WHERE NOT l.is_old OR x.is_rolled_back)
      SELECT FROM line n JOIN line o ON o.box_id = n.box_id WHERE NOT n.is_old AND o.is_old)
  AND (:since_id::text IS NULL OR h.turn_epoch - (h.status <> 'idle')::int <= x.turn_epoch)
  AND NOT EXISTS (SELECT FROM state.agent_inbox i WHERE i.agent_id = x.agent_id AND i.project_id = x.project_id
                  AND i.message_type = 'ui_action' AND i.request_digest IS NULL
                    AND i.turn_epoch > coalesce(x.turn_epoch, 0)
                  AND (:since::timestamptz IS NULL OR i.created_at >= :since::timestamptz - interval '1 day'))
  AND (:project_id::text IS NULL OR x.project_id = :project_id)
ORDER BY ids LIMIT :row_limit::int;

-- name: named_boxes_exist :many
-- Protocol §4.1: the profile boxes of profiles and of the roster, and the boxes that pointers name, are boxes of their
-- project.
SELECT jsonb_build_object('project_id', n.project_id, 'agent_id', n.agent_id, 'box_id', n.box_id) AS ids,
       format('the %s is no box of the project', n.what) AS detail
FROM (
    SELECT p.project_id, NULL AS agent_id, p.profile_box_id AS box_id, 'box of a profile' AS what
    FROM resource.profiles p
    UNION ALL
    SELECT a.project_id, a.agent_id, a.profile_box_id::text, 'profile box of the agent' FROM resource.project_agents a
    UNION ALL
    SELECT p.project_id, p.agent_id, p.memory_context_box_id::text, 'memory that the pointer names'
    FROM state.agent_state_pointers p
    UNION ALL
    SELECT p.project_id, p.agent_id, p.memory_context_box_id::text, 'memory that a channel''s pointer names'
    FROM state.channel_pointers p
    UNION ALL
    SELECT p.project_id, p.agent_id, p.last_output_box_id::text, 'last output box that the pointer names'
    FROM state.agent_state_pointers p
) n
LEFT JOIN public.boxes b ON b.box_id = state.as_uuid(n.box_id) AND b.tenant_id = n.project_id
WHERE n.box_id IS NOT NULL AND b.box_id IS NULL AND (:project_id::text IS NULL OR n.project_id = :project_id)
ORDER BY ids LIMIT :row_limit::int;
