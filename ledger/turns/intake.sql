-- Enqueue, and the stop of a queued turn (protocol §6).

-- name: enqueue_turn :one
-- Writes inbox row, edge, boxes and cards of a new turn. An idle agent is leased to its oldest turn whose output box is
-- free; else, and if the agent is paused, the row is queued. A UI action is never queued: it is leased at once or
-- nothing is written. A row whose agent is leased to it, and whose target is among :claimed_targets, is written as
-- claimed: the caller starts its workflow (§6, claim). The first turn of a conversation makes it, and the first of an
-- instance of a profile (:instance_of) makes the agent, too.
-- variant: enqueue_plain_turn, without boxes, parents, instances, actions
-- verdict: accepted | duplicate | busy | again (repeat the statement) | headless (make_head first) | the code of a
-- refusal or limit.
WITH
first AS MATERIALIZED (  -- an earlier enqueue under this correlation
    SELECT i.inbox_id, i.agent_id, i.agent_turn_id, i.turn_epoch, i.status, i.payload, i.context_headers,
           i.channel_id, i.request_digest
    FROM state.agent_inbox i
    WHERE i.correlation_id = :correlation_id AND i.project_id = :project_id AND i.message_type IN {turn_types}
    ORDER BY i.message_type <> :message_type LIMIT 1
),
-- only for boxes
held AS MATERIALIZED (  -- the existing boxes, locked
    SELECT b.box_id FROM state.hold_boxes(:project_id, ARRAY[:context_box_id::uuid, (
            SELECT m.memory_context_box_id FROM state.channel_boxes(:project_id, :channel_id, :agent_id) m
            WHERE NOT :has_instruction::boolean)], ARRAY[:output_box_id::uuid]) b
),
usable AS MATERIALIZED (  -- those in which no other channel has anything, and where none reads what this turn writes
    SELECT x.box_id FROM held x
    WHERE NOT state.is_abroad(:project_id, :channel_id, x.box_id)
      AND (x.box_id IS DISTINCT FROM :output_box_id::uuid
           OR NOT state.is_read_abroad(:project_id, :channel_id, x.box_id))
),
-- end
instance AS MATERIALIZED (  -- locked, or retention could put it to sleep meanwhile
    SELECT a.status FROM resource.project_agents a
    WHERE a.agent_id = :agent_id AND a.project_id = :project_id AND a.metadata ? 'instance_of' FOR NO KEY UPDATE
),
who AS MATERIALIZED (  -- always one row: the agent, the profile, and the conversation that the turn is in
    SELECT a.agent_id, coalesce(n.status, a.status) AS status,
           coalesce(a.worker_target, p.worker_target) AS worker_target,
           coalesce(state.as_uuid(p.profile_box_id), a.profile_box_id) AS profile_box_id,
           p.name AS profile_name, p.tags,
           a.metadata ->> 'instance_of' AS instance_of, k.settings, a.profile_box_id AS own_profile_box_id,
           -- what a request names can only tighten what the profile says, and the agent's own
           CASE WHEN state.as_uuid(p.profile_box_id) <> a.profile_box_id
                     THEN state.profile_in(:project_id, a.profile_box_id) -> 'interrupt_on' END AS guards,
           CASE WHEN :budget::jsonb IS NULL AND p.profile_box_id IS NULL THEN k.settings -> 'budget'
                ELSE state.least_budget(:budget, k.settings -> 'budget',
                                        CASE WHEN state.as_uuid(p.profile_box_id) <> a.profile_box_id THEN (
               SELECT x.settings -> 'budget' FROM resource.profiles x
               WHERE x.profile_box_id = a.profile_box_id::text AND x.project_id = :project_id
                 AND x.settings ->> 'profile_box_id' = x.profile_box_id) END) END AS budget,
           CASE WHEN :conversation_id::text IS NOT NULL THEN :conversation_id
                WHEN :may_remember::boolean AND k.settings -> 'memory' ->> 'keep' = 'conversation'
                     THEN '' END AS conversation_id
    FROM (SELECT) AS always
    LEFT JOIN resource.project_agents a ON a.agent_id = :agent_id AND a.project_id = :project_id
    LEFT JOIN instance n ON true
    LEFT JOIN resource.profiles p ON lower(p.name) = lower(:profile_name::text) AND p.project_id = :project_id
    LEFT JOIN LATERAL (
        SELECT x.settings FROM resource.profiles x
        WHERE x.profile_box_id = coalesce(p.profile_box_id, a.profile_box_id::text) AND x.project_id = :project_id
          AND x.settings ->> 'profile_box_id' = x.profile_box_id {by_key}) k ON true
),
talk AS MATERIALIZED (  -- the conversation, if it was begun before: locked, or retention could remove it meanwhile
    SELECT c.output_box_id FROM who JOIN state.conversations c
        ON c.agent_id = :agent_id AND c.conversation_id = who.conversation_id
        AND c.channel_id = :channel_id AND c.project_id = :project_id
    FOR NO KEY UPDATE OF c
),
plan AS MATERIALIZED (  -- always one row: boxes, depth and verdict of the request
    SELECT a.worker_target, a.profile_box_id, a.profile_name, a.tags, a.conversation_id, a.budget,
           a.guards, talk.output_box_id AS known_box_id,
           a.agent_id IS NULL AND :instance_of::text IS NOT NULL AS makes_agent, a.status = 'dormant' AS wakes_agent,
           CASE WHEN cardinality(:card_ids::text[]) > 0 THEN :new_context_box_id::uuid
                ELSE s.source_box_id END AS context_box_id,
           s.source_box_id, coalesce(:output_box_id::uuid, talk.output_box_id,
                                     :new_output_box_id::uuid) AS output_box_id, d.depth,
           CASE
               WHEN f.channel_id = :channel_id
                    AND f.request_digest IS NOT DISTINCT FROM :request_digest THEN 'duplicate'
               WHEN f.inbox_id IS NOT NULL THEN 'correlation_conflict'
               WHEN :over_rate::boolean THEN 'rate_limited'
               WHEN a.agent_id IS NULL AND NOT EXISTS (SELECT FROM resource.project_agents
                                                       WHERE project_id COLLATE "C" = :project_id)
                    AND NOT EXISTS (SELECT FROM resource.profiles WHERE project_id = :project_id) THEN 'unknown_project'
               WHEN a.agent_id IS NULL AND :instance_of::text IS NULL THEN 'unknown_agent'
               WHEN a.status NOT IN ('active', 'paused', 'dormant') THEN 'agent_inactive'
               WHEN :profile_name::text IS NOT NULL AND a.profile_name IS NULL THEN 'unknown_profile'
               WHEN :instance_of::text IS NOT NULL AND a.settings -> 'instances' IS DISTINCT FROM 'true'
                    THEN 'no_instances'
               WHEN :instance_of::text IS NOT NULL AND a.agent_id IS NOT NULL
                    AND a.instance_of IS DISTINCT FROM :instance_of
               THEN 'agent_exists'
               WHEN (:named_profile::text IS NOT NULL OR :named_model::text IS NOT NULL) AND NOT :operates::boolean
                    AND state.refused_name(:project_id, :caller::text,
                                           CASE WHEN :instance_of::text IS NULL THEN a.own_profile_box_id END,
                        a.profile_box_id, :named_profile, :named_model) IS NOT NULL
               THEN state.refused_name(:project_id, :caller::text,
                                       CASE WHEN :instance_of::text IS NULL THEN a.own_profile_box_id END,
                        a.profile_box_id, :named_profile, :named_model)
               WHEN d.depth >= :depth_limit::int THEN 'recursion_depth_exceeded'
               WHEN s.source_box_id IS NULL AND NOT :has_instruction::boolean THEN 'nothing_to_do'
-- only for boxes
               WHEN s.source_box_id IS NOT NULL AND s.source_box_id NOT IN (SELECT u.box_id FROM usable u)
                    THEN 'unknown_context_box'
               WHEN :output_box_id::uuid IS NOT NULL AND :output_box_id::uuid NOT IN (SELECT u.box_id FROM usable u)
               THEN 'unknown_output_box'
-- end
               WHEN cardinality(:card_ids::text[]) = 0
                    AND s.source_box_id = coalesce(:output_box_id::uuid, talk.output_box_id)
               THEN 'context_is_output'
               WHEN EXISTS (SELECT FROM jsonb_each(a.budget) z WHERE z.value = '0') THEN 'no_budget'
               WHEN :max_instances::int > 0 AND (a.agent_id IS NULL OR a.status = 'dormant') AND (
                    SELECT count(*) FROM (
                        SELECT FROM resource.project_agents l
                        WHERE l.project_id COLLATE "C" = :project_id AND l.status = 'active'
                            AND l.metadata ? 'instance_of' AND NOT l.metadata ? 'spawned_by'
                        LIMIT :max_instances::int) l) >= :max_instances::int THEN 'instances_full'
               WHEN :max_live_turns::int > 0 AND (  -- a turn counts by its inbox row until it begins, then by its head
                    SELECT count(*) FROM (
                        SELECT FROM state.agent_inbox l WHERE l.project_id COLLATE "C" = :project_id
                          AND l.archived_at IS NULL AND l.inbox_id >= ''
                            AND l.message_type IN {turn_types} LIMIT :max_live_turns::int * c.share) l) + (
                    SELECT count(*) FROM (
                        SELECT FROM state.agent_state_head b WHERE b.project_id COLLATE "C" = :project_id
                            AND b.agent_id >= '' AND b.output_box_id IS NOT NULL AND b.status <> 'dispatched'
                        LIMIT :max_live_turns::int * c.share) b)
                    >= :max_live_turns::int * c.share THEN 'project_full'
               ELSE 'accepted'
           END AS verdict
    FROM (SELECT) AS always
    LEFT JOIN first f ON true
    CROSS JOIN who a
    LEFT JOIN talk ON true
-- only for boxes
    CROSS JOIN LATERAL (
        SELECT coalesce(:context_box_id::uuid, CASE WHEN NOT :has_instruction::boolean THEN (
            SELECT m.memory_context_box_id
            FROM state.channel_boxes(:project_id, :channel_id, :agent_id) m) END) AS source_box_id {once}) s
-- else
    CROSS JOIN (SELECT NULL::uuid AS source_box_id) s
-- end
-- only for parents
    CROSS JOIN LATERAL (  -- one more than the parent's depth; the headers can only raise it
        SELECT greatest(:header_depth::int, (
            SELECT max(coalesce(state.as_count(t.context_headers ->> 'CG-Recursion-Depth'), 0)) + 1
            FROM state.agent_inbox t
            WHERE t.agent_turn_id = :parent_turn_id::text AND t.project_id = :project_id AND t.channel_id = :channel_id
              AND t.message_type IN {turn_types})) AS depth {once}) d
    CROSS JOIN LATERAL (  -- a child of an active turn has a higher limit: its refusal could keep its parent from ending
        SELECT CASE WHEN EXISTS (
            SELECT FROM state.agent_inbox t CROSS JOIN LATERAL (
                SELECT FROM state.agent_state_head h
                WHERE h.agent_id = t.agent_id AND h.project_id = :project_id
                  AND h.active_agent_turn_id = :parent_turn_id {by_key}) h
            WHERE t.agent_turn_id = :parent_turn_id::text AND t.project_id = :project_id
              AND t.channel_id = :channel_id AND t.message_type IN {turn_types})
            THEN :child_share::int ELSE 1 END AS share {once}) c
-- else
    CROSS JOIN (SELECT :header_depth::int AS depth) d
    CROSS JOIN (SELECT 1 AS share) c
-- end
),
locked AS MATERIALIZED (  -- locks the agent
    SELECT h.status, h.turn_epoch, h.queue_seq, h.paused_at_epoch IS NOT NULL AS paused, h.xmin AS version
    FROM plan JOIN state.agent_state_head h ON plan.verdict = 'accepted'
    WHERE h.agent_id = :agent_id AND h.project_id = :project_id FOR NO KEY UPDATE OF h
),
head AS MATERIALIZED (
    SELECT * FROM locked
-- only for instances
    UNION ALL
    SELECT 'idle', 0, 0, false, NULL FROM plan
    WHERE plan.verdict = 'accepted' AND plan.makes_agent AND NOT EXISTS (SELECT FROM locked)
-- end
),
older AS MATERIALIZED (  -- a queued turn whose box has become free is leased first
    SELECT q.* FROM head CROSS JOIN LATERAL (
        SELECT q.* FROM state.queued_turns q
        WHERE q.agent_id = :agent_id AND q.project_id = :project_id
          AND NOT EXISTS (SELECT FROM state.agent_state_head busy WHERE busy.output_box_id = q.output_box_id)
        ORDER BY q.created_at LIMIT 1 FOR NO KEY UPDATE OF q) q
    WHERE head.status = 'idle' AND NOT head.paused
),
go AS MATERIALIZED (
    SELECT plan.*, {next_epoch(head.turn_epoch)} AS turn_epoch, older.inbox_id AS older_inbox_id, lease.leases_mine,
           jsonb_build_object('CG-Conversation-Id', plan.output_box_id) || :context_headers::jsonb
               || jsonb_build_object('CG-Recursion-Depth', plan.depth::text) AS headers,
           CASE WHEN lease.leases_mine OR :max_queued_turns::int = 0 THEN 'free'
                WHEN queue.found >= :max_queued_turns::int THEN 'full'
                -- enqueues that committed during the wait for the lock may have filled the queue: 'again' makes the
                -- limit exact
                WHEN queue.found + head.queue_seq - seen.queue_seq >= :max_queued_turns::int THEN 'unsure'
                ELSE 'free' END AS queue
    FROM plan CROSS JOIN head LEFT JOIN older ON true
    LEFT JOIN state.agent_state_head seen ON seen.agent_id = :agent_id AND seen.project_id = :project_id
    CROSS JOIN LATERAL (
        SELECT (head.status = 'idle' AND NOT head.paused AND older.inbox_id IS NULL AND NOT EXISTS (
               -- the agent's own head is idle, although the snapshot may show it busy
               SELECT FROM state.agent_state_head busy
               WHERE busy.output_box_id = plan.output_box_id AND busy.agent_id <> :agent_id)
-- only for actions
            AND NOT (:message_type::text = 'ui_action' AND EXISTS (  -- whether or not it could run now
               SELECT FROM state.queued_turns q WHERE q.agent_id = :agent_id
                 AND q.project_id = :project_id))) AS leases_mine {once}) lease
-- else
            ) AS leases_mine {once}) lease
-- end
    CROSS JOIN LATERAL (
        SELECT count(*) AS found FROM (
            SELECT FROM state.agent_inbox q
            WHERE q.agent_id = :agent_id AND q.project_id = :project_id AND q.archived_at IS NULL
              AND q.next_retry_at = 'infinity'
              AND q.status = 'queued'
              AND :max_queued_turns::int > 0 LIMIT :max_queued_turns::int) q) queue
    WHERE (seen.queue_seq IS NOT NULL OR head.version IS NULL)
      -- 'busy' is answered, and a conversation begun, only from a snapshot as new as the lock
      AND (seen.xmin = head.version OR (:message_type = 'turn'
                                        AND (plan.conversation_id IS NULL OR plan.known_box_id IS NOT NULL))
           OR head.version IS NULL)
),
mine AS (
    INSERT INTO state.agent_inbox AS i
        (inbox_id, project_id, agent_id, channel_id, message_type, enqueue_mode, correlation_id,
         agent_turn_id, turn_epoch,
         context_headers, payload, status, next_retry_at, processed_at, created_at, request_digest)
    SELECT :inbox_id, :project_id, :agent_id, :channel_id, :message_type, 'call', :correlation_id, :agent_turn_id,
           CASE WHEN go.leases_mine THEN go.turn_epoch ELSE 0 END, go.headers,
           jsonb_build_object('profile_box_id', go.profile_box_id, 'context_box_id', go.context_box_id,
                              'output_box_id', CASE
                                  -- else its lease resolves it
                                  WHEN go.leases_mine OR go.conversation_id IS NULL THEN go.output_box_id END,
                              'runtime_config', :runtime_config::jsonb || CASE
                                  WHEN go.conversation_id IS NULL THEN '{}' ELSE '{"remember": true}'::jsonb END)
           || CASE WHEN go.conversation_id IS NULL THEN '{}'
                   ELSE jsonb_build_object('conversation_id', go.conversation_id) END
           || CASE WHEN :message_type = 'ui_action' THEN jsonb_build_object('ui_action', :ui_action::jsonb)
                   ELSE '{}' END
           || CASE WHEN :rerun::jsonb IS NOT NULL THEN jsonb_build_object('rerun', :rerun::jsonb) ELSE '{}' END
           || CASE WHEN go.guards IS NULL THEN '{}' ELSE jsonb_build_object('guards', go.guards) END
           || CASE WHEN charged.budget IS NULL THEN '{}' ELSE jsonb_build_object('budget', charged.budget) END,
           CASE WHEN NOT go.leases_mine THEN 'queued' WHEN claimed.at IS NULL THEN 'pending' ELSE 'processing' END,
           CASE WHEN go.leases_mine THEN now() ELSE 'infinity' END, claimed.at, clock_timestamp(), :request_digest
    FROM go CROSS JOIN LATERAL (
        -- what the turn may spend, and where that is counted: a trigger does, or refuses all of this
        SELECT CASE WHEN go.budget IS NOT NULL OR EXISTS (SELECT FROM state.project_budgets p
                                                          WHERE p.project_id = :project_id)
               THEN state.plan_budget(:project_id, :agent_turn_id, go.budget, NULL) END AS budget {once}) charged
    CROSS JOIN LATERAL (SELECT CASE WHEN go.leases_mine AND go.worker_target = ANY (:claimed_targets::text[])
                                         THEN now() END AS at {once}) claimed
    WHERE go.leases_mine OR (:message_type = 'turn' AND go.queue = 'free')
    ON CONFLICT DO NOTHING
    RETURNING i.inbox_id, i.agent_turn_id, i.turn_epoch, i.status
),
-- only for boxes
used AS (  -- hold_boxes has locked a box that nothing has used as one that is written
    UPDATE public.boxes b SET unused_of = NULL
    WHERE b.box_id IN (SELECT h.box_id FROM held h CROSS JOIN mine) AND b.unused_of IS NOT NULL
),
-- end
lease AS MATERIALIZED (
    SELECT o.inbox_id, o.agent_turn_id, o.channel_id, o.profile_box_id, o.context_box_id,
           {box_at_lease(o)} AS output_box_id, o.trace_id, o.parent_step_id, o.recursion_depth, o.context_headers
    FROM older o CROSS JOIN mine
    UNION ALL
    SELECT mine.inbox_id, mine.agent_turn_id, :channel_id, go.profile_box_id, go.context_box_id, go.output_box_id,
           split_part(go.headers ->> 'traceparent', '-', 2), go.headers ->> 'CG-Parent-Step-Id', go.depth, go.headers
    FROM mine CROSS JOIN go WHERE go.leases_mine
),
made AS MATERIALIZED (  -- what the request comes to, if its row was really inserted
    SELECT go.* FROM mine CROSS JOIN go
),
begun AS (  -- by the conversation's first turn; of two at once the unique key refuses one, which is repeated
    INSERT INTO state.conversations (project_id, channel_id, agent_id, conversation_id, output_box_id,
                                     turn_count, last_turn_id)
    SELECT :project_id, :channel_id, :agent_id, go.conversation_id, go.output_box_id, 1, :agent_turn_id FROM made go
    WHERE go.conversation_id IS NOT NULL AND go.known_box_id IS NULL
),
went_on AS (
    UPDATE state.conversations c SET turn_count = c.turn_count + 1, last_turn_id = :agent_turn_id,
                                     updated_at = now() FROM made go
    WHERE c.agent_id = :agent_id AND c.conversation_id = go.conversation_id
      AND c.channel_id = :channel_id AND c.project_id = :project_id
      AND go.known_box_id IS NOT NULL
),
-- only for instances
made_agent AS (  -- as above
    INSERT INTO resource.project_agents (project_id, agent_id, profile_box_id, worker_target, tags, metadata)
    SELECT :project_id, :agent_id, go.profile_box_id, go.worker_target, go.tags, jsonb_strip_nulls(jsonb_build_object(
               'instance_of', :instance_of::text, 'conversation_id', :conversation_id,
               'agent_turn_id', CASE WHEN :conversation_id IS NULL THEN :agent_turn_id END))
    FROM made go WHERE go.makes_agent
),
identity AS (
    INSERT INTO state.identity_edges (edge_id, project_id, channel_id, action, target_agent_id, trace_id, metadata)
    SELECT 'instance-' || :agent_turn_id, :project_id, :channel_id, 'ensure', :agent_id,
           split_part(go.headers ->> 'traceparent', '-', 2), jsonb_build_object('instance_of', :instance_of::text)
    FROM made go WHERE go.makes_agent
),
-- end
woken AS (
    UPDATE resource.project_agents a SET status = 'active' FROM made go
    WHERE a.agent_id = :agent_id AND a.project_id = :project_id AND go.wakes_agent
),
-- only for instances
made_head AS (
    INSERT INTO state.agent_state_head (project_id, agent_id, status, turn_epoch, queue_seq,
                                        active_agent_turn_id, active_inbox_id,
        active_channel_id, active_recursion_depth, parent_step_id, trace_id, profile_box_id,
        context_box_id, output_box_id)
    SELECT :project_id, :agent_id, CASE WHEN l.inbox_id IS NULL THEN 'idle' ELSE 'dispatched' END,
           CASE WHEN l.inbox_id IS NULL THEN 0 ELSE go.turn_epoch END,
           1, l.agent_turn_id, l.inbox_id, l.channel_id, coalesce(l.recursion_depth, 0), l.parent_step_id,
           l.trace_id, l.profile_box_id, l.context_box_id, l.output_box_id
    FROM mine CROSS JOIN head CROSS JOIN go LEFT JOIN lease l ON true WHERE head.version IS NULL
    RETURNING active_inbox_id, turn_epoch, updated_at
),
-- end
counted AS (  -- every enqueue changes the head, so that a finish that waits for the lock looks again
    UPDATE state.agent_state_head h SET queue_seq = h.queue_seq + 1
    FROM mine WHERE h.agent_id = :agent_id AND h.project_id = :project_id AND NOT EXISTS (SELECT FROM lease)
),
leased AS (
    UPDATE state.agent_state_head h SET
        status = 'dispatched', turn_epoch = go.turn_epoch, queue_seq = h.queue_seq + 1, {turn_on_head}
    FROM lease n CROSS JOIN go WHERE h.agent_id = :agent_id AND h.project_id = :project_id
    RETURNING n.inbox_id, n.agent_turn_id, n.channel_id, n.context_headers, n.output_box_id, h.turn_epoch, h.updated_at
),
rings AS (
    SELECT * FROM leased
-- only for instances
    UNION ALL
    SELECT l.inbox_id, l.agent_turn_id, l.channel_id, l.context_headers, l.output_box_id, m.turn_epoch, m.updated_at
    FROM made_head m JOIN lease l ON l.inbox_id = m.active_inbox_id
-- end
),
moved AS (
    UPDATE state.agent_inbox i SET status = 'pending', next_retry_at = now(), turn_epoch = leased.turn_epoch
    FROM leased JOIN older USING (inbox_id) WHERE i.inbox_id = older.inbox_id
),
edge AS (
    INSERT INTO state.execution_edges
        (edge_id, project_id, channel_id, primitive, edge_phase, source_agent_id, source_agent_turn_id, source_step_id,
         target_agent_id, target_agent_turn_id, correlation_id, enqueue_mode, recursion_depth, trace_id,
         parent_step_id, metadata)
    SELECT 'enqueue-' || :agent_turn_id, :project_id, :channel_id,
           'enqueue', 'request', go.headers ->> 'CG-Parent-Agent-Id',
           go.headers ->> 'CG-Parent-Turn-Id', go.headers ->> 'CG-Parent-Step-Id', :agent_id,
           :agent_turn_id, :correlation_id,
           'call', go.depth, split_part(go.headers ->> 'traceparent', '-', 2), go.headers ->> 'CG-Parent-Step-Id',
           :metadata::jsonb
    FROM made go
    ON CONFLICT DO NOTHING
),
made_boxes AS (
    INSERT INTO public.boxes (box_id, tenant_id, parent_ids)
    SELECT b.box_id, :project_id, b.parents FROM made go CROSS JOIN LATERAL (VALUES
        (go.context_box_id, CASE WHEN go.source_box_id IS NULL THEN '{}'::uuid[] ELSE ARRAY[go.source_box_id] END,
         cardinality(:card_ids::text[]) > 0),
        (go.output_box_id, '{}'::uuid[], :output_box_id::uuid IS NULL
         AND go.known_box_id IS NULL)) b (box_id, parents, wanted)
    WHERE b.wanted
),
made_cards AS (
    INSERT INTO public.cards (card_id, tenant_id, content, metadata)
    SELECT c.card_id, :project_id, c.content, c.metadata || jsonb_build_object(
               'trace_id', split_part(go.headers ->> 'traceparent', '-', 2),
               'parent_step_id', go.headers ->> 'CG-Parent-Step-Id')
    FROM made go
    CROSS JOIN unnest(:card_ids::text[], :card_contents::jsonb[],
                      :card_metadatas::jsonb[]) c (card_id, content, metadata)
),
boxed AS (
    INSERT INTO public.box_cards (box_id, position, card_id)
-- only for boxes
    SELECT go.context_box_id, row_number() OVER (ORDER BY x.part, x.position), x.card_id
    FROM made go
    CROSS JOIN LATERAL (
        SELECT 1 AS part, s.position, s.card_id FROM public.box_cards s WHERE s.box_id = go.source_box_id
        UNION ALL
        SELECT 2, n.position, n.card_id FROM unnest(:card_ids::text[]) WITH ORDINALITY n (card_id, position)) x
-- else
    SELECT go.context_box_id, n.position, n.card_id FROM made go
    CROSS JOIN unnest(:card_ids::text[]) WITH ORDINALITY n (card_id, position)
-- end
    WHERE cardinality(:card_ids::text[]) > 0
)
SELECT CASE
           WHEN mine.inbox_id IS NOT NULL THEN 'accepted'
           WHEN plan.verdict <> 'accepted' THEN plan.verdict
           WHEN NOT EXISTS (SELECT FROM head) THEN 'headless'
-- only for actions
           WHEN :message_type = 'ui_action' AND EXISTS (SELECT FROM go WHERE NOT go.leases_mine) THEN 'busy'
-- end
           WHEN EXISTS (SELECT FROM go WHERE go.queue = 'full') THEN 'queue_full'
           ELSE 'again'
       END AS verdict,
       coalesce(mine.agent_turn_id, f.agent_turn_id) AS agent_turn_id,
       coalesce(mine.turn_epoch, f.turn_epoch) AS turn_epoch,
       coalesce(mine.inbox_id, f.inbox_id) AS inbox_id, mine.status = 'processing' AS claimed,
       coalesce(mine.status, f.status) AS inbox_status,
       coalesce(state.as_uuid(f.payload ->> 'context_box_id'), plan.context_box_id)::text AS context_box_id,
       coalesce(state.as_uuid(f.payload ->> 'output_box_id'), plan.output_box_id)::text AS output_box_id,
       split_part(coalesce(f.context_headers, :context_headers::jsonb) ->> 'traceparent', '-', 2) AS trace_id,
       coalesce(f.agent_id, :agent_id) AS agent_id,
       CASE WHEN f.inbox_id IS NULL THEN plan.conversation_id
            ELSE f.payload ->> 'conversation_id' END AS conversation_id,
       plan.worker_target, plan.profile_box_id::text AS profile_box_id, rings.context_headers,
       rings.inbox_id AS leased_inbox_id,
       rings.agent_turn_id AS leased_turn_id, rings.channel_id AS leased_channel_id, rings.turn_epoch AS leased_epoch,
       rings.output_box_id::text AS leased_output_box_id, rings.updated_at AS leased_at
FROM plan LEFT JOIN mine ON true LEFT JOIN first f ON true LEFT JOIN rings ON true;

-- name: make_head :exec
-- Makes the head of an agent that has none.
INSERT INTO state.agent_state_head (project_id, agent_id) VALUES (:project_id, :agent_id) ON CONFLICT DO NOTHING;

-- name: stop_queued_turn :opt
-- Ends a queued turn at epoch 0: skips its row, writes deliverable and outcome, in the box that it named if no other
-- agent holds that, else in a new one. A turn of a conversation has no box before its lease, so that what never ran is
-- not in the conversation's memory. No row: the turn is not queued.
WITH
head AS MATERIALIZED (
    SELECT h.agent_id FROM state.agent_state_head h
    WHERE h.agent_id = :agent_id AND h.project_id = :project_id FOR NO KEY UPDATE
),
skipped AS (
    UPDATE state.agent_inbox i SET status = 'skipped', last_error = :error_code, archived_at = now(),
                                   next_retry_at = now()
    FROM head
    WHERE i.agent_turn_id = :agent_turn_id AND i.agent_id = head.agent_id AND i.project_id = :project_id
      AND {is_null(i.archived_at)} AND i.status = 'queued'
    RETURNING i.inbox_id, i.channel_id, state.as_uuid(i.payload ->> 'output_box_id') AS wanted_box_id,
              split_part(i.context_headers ->> 'traceparent', '-', 2) AS trace_id, i.created_at,
              i.context_headers, i.payload
),
target AS MATERIALIZED (
    SELECT s.*, s.wanted_box_id IS NOT NULL AND NOT EXISTS (
               SELECT FROM state.agent_state_head busy
               WHERE busy.output_box_id = s.wanted_box_id AND busy.agent_id <> :agent_id) AS free
    FROM skipped s
),
fresh AS (
    INSERT INTO public.boxes (box_id, tenant_id) SELECT :new_box_id::uuid, :project_id FROM target WHERE NOT free
),
card AS (
    INSERT INTO public.cards (card_id, tenant_id, content, metadata)
    SELECT :card_id, :project_id, :content::jsonb, :metadata::jsonb FROM target
),
outcome AS (
    INSERT INTO state.turn_outcomes (agent_turn_id, project_id, agent_id, channel_id, turn_epoch, inbox_id, status,
                                     deliverable_card_id, output_box_id, error_code, error, trace_id, stats)
    SELECT :agent_turn_id, :project_id, :agent_id, t.channel_id, 0, t.inbox_id, 'canceled', :card_id,
           CASE WHEN t.free THEN t.wanted_box_id ELSE :new_box_id::uuid END, :error_code, :error::text, t.trace_id,
           jsonb_build_object('steps', 0) || state.turn_timing(t.created_at, NULL) || {rolled_back(t)}
    FROM target t
    RETURNING channel_id, inbox_id, status, deliverable_card_id, output_box_id, stats, ended_at
),
last AS MATERIALIZED (
    SELECT coalesce(max(b.position), 0) AS position FROM outcome o JOIN public.box_cards b ON b.box_id = o.output_box_id
),
own AS MATERIALIZED (  -- if the agent's active turn writes that box, its next position moves on
    UPDATE state.agent_state_head h SET output_position = greatest(h.output_position, last.position) + 1
    FROM outcome o CROSS JOIN last WHERE h.agent_id = :agent_id AND h.project_id = :project_id
      AND h.output_box_id = o.output_box_id
    RETURNING h.output_position AS position
),
boxed AS (
    INSERT INTO public.box_cards (box_id, position, card_id)
    SELECT o.output_box_id, coalesce((SELECT position FROM own), last.position + 1), :card_id
    FROM outcome o CROSS JOIN last
)
SELECT o.channel_id, o.inbox_id, o.status, o.deliverable_card_id, o.output_box_id::text AS output_box_id,
       o.stats, o.ended_at,
       t.context_headers, EXISTS (SELECT FROM state.turn_nodes m WHERE m.agent_turn_id = :agent_turn_id) AS in_tree,
       ARRAY(SELECT s.steer_id FROM state.steers s WHERE s.agent_turn_id = :agent_turn_id AND s.status = 'waiting'
             ORDER BY s.seq) AS skipped_steers
FROM outcome o CROSS JOIN target t;
