-- Enqueues a turn. An agent that is idle and not paused is leased to it, unless another turn or another agent is before
-- it: then the row is queued. A UI action is never queued: it is leased at once or nothing is written. A turn whose
-- agent is leased to it, and whose target is among claimed_targets, is written as claimed: the caller starts its
-- workflow (§6, claim). The first turn of a conversation makes it, and the first of an instance of a profile
-- (instance_of) makes the agent, too. Each statement has a snapshot newer than the locks before it.
-- verdict: accepted | duplicate | busy | the code of a refusal or limit; with all but the first nothing was written.
-- What others changed meanwhile fails it as a conflict, after which it is repeated. is_stranded: the agent is idle, and
-- a turn before this one can be leased.
CREATE OR REPLACE FUNCTION state.enqueue_turn(request jsonb, claimed_targets text[], OUT verdict text,
    OUT turn state.new_turn, OUT status text, OUT queued_because text, OUT conversation_id text, OUT worker_target text,
    OUT leased_at timestamptz, OUT is_stranded boolean)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    r record;
    f state.agent_inbox;
    a record;
    h state.agent_state_head;
    q record;
    limits jsonb;
    plan jsonb;
    guards jsonb;
    known_box uuid;
    source uuid;
    usable uuid[];
    depth integer;
    share integer := 1;
    person text;
    parent text;
BEGIN
    SELECT x.* INTO r FROM jsonb_to_record(request) x (
        project_id text, channel_id text, agent_id text, agent_turn_id text, inbox_id text, message_type text,
        correlation_id text, request_digest text, instance_of text, conversation_id text, may_remember boolean,
        context_headers jsonb, depth int, depth_limit int, over_rate boolean, max_queued_turns int, max_live_turns int,
        max_instances int, child_share int, profile_name text, named_profile text, named_model text, caller text,
        operates boolean, has_instruction boolean, context_box_id uuid, output_box_id uuid, new_context_box_id uuid,
        new_output_box_id uuid, settings jsonb, end_user text, budget jsonb, metadata jsonb, cards jsonb,
        needs_level int, purse jsonb);
    turn.correlation_id := r.correlation_id;
    SELECT i.* INTO f FROM state.agent_inbox i
    WHERE i.correlation_id = r.correlation_id AND i.project_id = r.project_id
      AND i.message_type IN ('turn', 'ui_action')
    ORDER BY i.message_type <> r.message_type LIMIT 1;
    IF FOUND THEN
        verdict := CASE WHEN f.channel_id = r.channel_id AND f.request_digest IS NOT DISTINCT FROM r.request_digest
                        THEN 'duplicate' ELSE 'correlation_conflict' END;
        turn.agent_id := f.agent_id;
        turn.agent_turn_id := f.agent_turn_id;
        turn.inbox_id := f.inbox_id;
        turn.turn_epoch := f.turn_epoch;
        turn.headers := f.context_headers;
        turn.settings := f.payload;
        turn.created_at := f.created_at;
        turn.context_box_id := state.as_uuid(f.payload ->> 'context_box_id');
        turn.output_box_id := state.as_uuid(f.payload ->> 'output_box_id');
        IF turn.output_box_id IS NULL THEN  -- of a queued turn of a conversation
            turn.output_box_id := state.conversation_box(r.project_id, f.agent_id, f.channel_id,
                                                         f.payload ->> 'conversation_id');
        END IF;
        conversation_id := f.payload ->> 'conversation_id';
        status := f.status;
        RETURN;
    END IF;

    -- The agent, the profile and the conversation. An instance is locked, or retention could put it to sleep meanwhile;
    -- a conversation, or retention could remove it.
    SELECT x.agent_id, x.status, x.profile_box_id AS own_box_id, x.metadata ->> 'instance_of' AS instance_of,
           coalesce(x.worker_target, p.worker_target) AS worker_target,
           coalesce(state.as_uuid(p.profile_box_id), x.profile_box_id) AS profile_box_id, p.name AS profile_name,
           p.tags, k.settings
    INTO a FROM (SELECT) AS always
    LEFT JOIN resource.project_agents x ON x.agent_id = r.agent_id AND x.project_id = r.project_id
    LEFT JOIN resource.profiles p ON lower(p.name) = lower(r.profile_name) AND p.project_id = r.project_id
    LEFT JOIN LATERAL (
        SELECT y.settings FROM resource.profiles y
        WHERE y.profile_box_id = coalesce(p.profile_box_id, x.profile_box_id::text) AND y.project_id = r.project_id
          AND y.settings ->> 'profile_box_id' = y.profile_box_id OFFSET 0) k ON true;
    IF a.instance_of IS NOT NULL THEN
        PERFORM FROM resource.project_agents x
        WHERE x.agent_id = r.agent_id AND x.project_id = r.project_id FOR NO KEY UPDATE;
    END IF;
    verdict := CASE
        WHEN r.over_rate THEN 'rate_limited'
        WHEN (r.needs_level IS NOT NULL OR a.settings ? 'needs_level')
            AND state.is_behind(greatest(r.needs_level, state.as_count(a.settings ->> 'needs_level')))
        THEN 'upgrade_under_way'
        WHEN a.agent_id IS NULL AND r.instance_of IS NULL THEN 'unknown_agent'
        WHEN a.status NOT IN ('active', 'paused', 'dormant') THEN 'agent_inactive'
        WHEN r.profile_name IS NOT NULL AND a.profile_name IS NULL THEN 'unknown_profile'
        WHEN r.instance_of IS NOT NULL AND a.settings -> 'instances' IS DISTINCT FROM 'true' THEN 'no_instances'
        WHEN r.instance_of IS NOT NULL AND a.agent_id IS NOT NULL AND a.instance_of IS DISTINCT FROM r.instance_of
        THEN 'agent_exists' END;
    IF verdict IN ('unknown_agent', 'unknown_profile') AND a.agent_id IS NULL AND a.profile_name IS NULL
        AND NOT EXISTS (SELECT FROM resource.project_agents x WHERE x.project_id COLLATE "C" = r.project_id)
        AND NOT EXISTS (SELECT FROM resource.profiles x WHERE x.project_id = r.project_id) THEN
        verdict := 'unknown_project';
    END IF;
    IF verdict IS NULL AND NOT r.operates AND (r.named_profile IS NOT NULL OR r.named_model IS NOT NULL) THEN
        verdict := state.refused_name(r.project_id, r.caller, CASE WHEN r.instance_of IS NULL THEN a.own_box_id END,
            a.profile_box_id, r.named_profile, r.named_model);
    END IF;
    IF verdict IS NOT NULL THEN
        RETURN;
    END IF;
    conversation_id := CASE WHEN r.conversation_id IS NOT NULL THEN r.conversation_id
        WHEN r.may_remember AND a.settings -> 'memory' ->> 'keep' = 'conversation' THEN '' END;
    IF conversation_id IS NOT NULL THEN
        SELECT c.output_box_id INTO known_box FROM state.conversations c
        WHERE c.agent_id = r.agent_id AND c.conversation_id = enqueue_turn.conversation_id
          AND c.channel_id = r.channel_id AND c.project_id = r.project_id FOR NO KEY UPDATE;
    END IF;
    -- What a request names can only tighten what the profile says, and the agent's own.
    limits := a.settings -> 'budget';
    IF a.own_box_id <> a.profile_box_id THEN
        guards := state.profile_in(r.project_id, a.own_box_id) -> 'interrupt_on';
        limits := state.least_budget(limits, (
            SELECT x.settings -> 'budget' FROM resource.profiles x
            WHERE x.profile_box_id = a.own_box_id::text AND x.project_id = r.project_id
              AND x.settings ->> 'profile_box_id' = x.profile_box_id));
    END IF;
    IF r.budget IS NOT NULL THEN
        limits := state.least_budget(r.budget, limits);
    END IF;

    -- One deeper than its parent; the headers can only raise it. A child of an active turn has a higher limit: its
    -- refusal could keep its parent from ending.
    depth := r.depth;
    person := r.end_user;
    IF r.settings ? 'rerun' THEN  -- whose the turn is that it runs again
        SELECT i.payload ->> 'end_user' INTO person FROM state.agent_inbox i
        WHERE i.agent_turn_id = r.settings -> 'rerun' ->> 'of' AND i.project_id = r.project_id
          AND i.message_type = 'turn' LIMIT 1;
    END IF;
    IF r.context_headers ? 'CG-Parent-Turn-Id' THEN
        SELECT greatest(depth, max(coalesce(state.as_count(t.context_headers ->> 'CG-Recursion-Depth'), 0)) + 1),
               CASE WHEN bool_or(x.agent_id IS NOT NULL) THEN r.child_share ELSE 1 END,
               coalesce(max(t.payload ->> 'end_user'), person)
        INTO depth, share, person FROM state.agent_inbox t LEFT JOIN LATERAL (
            SELECT x.agent_id FROM state.agent_state_head x
            WHERE x.agent_id = t.agent_id AND x.project_id = r.project_id AND x.active_agent_turn_id = t.agent_turn_id
            OFFSET 0) x ON true
        WHERE t.agent_turn_id = r.context_headers ->> 'CG-Parent-Turn-Id' AND t.project_id = r.project_id
          AND t.channel_id = r.channel_id AND t.message_type IN ('turn', 'ui_action');
    END IF;

    -- What is being deleted takes nothing new.
    parent := coalesce(r.context_headers ->> 'CG-Parent-Turn-Id', r.settings -> 'rerun' ->> 'of');
    IF coalesce(person, parent) IS NOT NULL THEN
        PERFORM state.lock_deletions(r.project_id, false);
    END IF;
    IF coalesce(conversation_id, person, parent) IS NOT NULL
        AND state.is_being_deleted(r.project_id, r.channel_id, r.agent_id, conversation_id, person, parent) THEN
        verdict := 'being_deleted';
        RETURN;
    END IF;

    -- The boxes: existing ones are locked, and may have nothing of another channel; none of another channel's turns may
    -- read what this turn writes.
    source := r.context_box_id;
    IF source IS NULL AND NOT r.has_instruction THEN
        source := (SELECT m.memory_context_box_id FROM state.channel_boxes(r.project_id, r.channel_id, r.agent_id) m);
    END IF;
    IF source IS NOT NULL OR r.output_box_id IS NOT NULL THEN
        usable := ARRAY(SELECT b.box_id FROM state.hold_boxes(r.project_id, ARRAY[source], ARRAY[r.output_box_id]) b
            WHERE NOT state.is_abroad(r.project_id, r.channel_id, b.box_id)
              AND (b.box_id IS DISTINCT FROM r.output_box_id
                   OR NOT state.is_read_abroad(r.project_id, r.channel_id, b.box_id)));
    END IF;
    turn.makes_context := jsonb_array_length(r.cards) > 0;
    turn.context_box_id := CASE WHEN turn.makes_context THEN r.new_context_box_id ELSE source END;
    turn.output_box_id := coalesce(r.output_box_id, known_box, r.new_output_box_id);
    turn.makes_output := r.output_box_id IS NULL AND known_box IS NULL;
    verdict := CASE
        WHEN depth >= r.depth_limit THEN 'recursion_depth_exceeded'
        WHEN source IS NULL AND NOT r.has_instruction THEN 'nothing_to_do'
        WHEN source IS NOT NULL AND source <> ALL (usable) THEN 'unknown_context_box'
        WHEN r.output_box_id IS NOT NULL AND r.output_box_id <> ALL (usable) THEN 'unknown_output_box'
        WHEN turn.context_box_id = turn.output_box_id THEN 'context_is_output'
        WHEN limits @? '$.* ? (@ == 0)' THEN 'no_budget' END;
    IF verdict IS NULL AND r.max_instances > 0 AND (a.agent_id IS NULL OR a.status = 'dormant') THEN
        verdict := CASE WHEN r.max_instances <= (SELECT count(*) FROM (
            SELECT FROM resource.project_agents l
            WHERE l.project_id COLLATE "C" = r.project_id AND l.status = 'active' AND l.metadata ? 'instance_of'
              AND NOT l.metadata ? 'spawned_by' LIMIT r.max_instances) l) THEN 'instances_full' END;
    END IF;
    IF verdict IS NULL AND r.max_live_turns > 0 AND state.is_crowded(r.project_id, r.max_live_turns * share) THEN
        verdict := 'project_full';
    END IF;
    IF verdict IS NOT NULL THEN
        RETURN;
    END IF;

    -- The agent's head is locked, and shows what is before the turn.
    SELECT x.* INTO h FROM state.agent_state_head x
    WHERE x.agent_id = r.agent_id AND x.project_id = r.project_id FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        INSERT INTO state.agent_state_head (project_id, agent_id) VALUES (r.project_id, r.agent_id)
        ON CONFLICT DO NOTHING;
        SELECT x.* INTO h FROM state.agent_state_head x
        WHERE x.agent_id = r.agent_id AND x.project_id = r.project_id FOR NO KEY UPDATE;
    END IF;
    SELECT i.idle AND EXISTS (
               SELECT FROM state.queued_turns o WHERE o.agent_id = r.agent_id AND o.project_id = r.project_id
                 AND (r.message_type = 'ui_action' OR NOT EXISTS (
                     SELECT FROM state.agent_state_head x WHERE x.output_box_id = o.output_box_id))) AS is_stranded,
           i.idle AND NOT EXISTS (
               SELECT FROM state.agent_state_head x
               WHERE x.output_box_id = turn.output_box_id AND x.agent_id <> r.agent_id) AS may_run,
           r.max_queued_turns > 0 AND r.max_queued_turns <= (SELECT count(*) FROM (
               SELECT FROM state.agent_inbox o
               WHERE o.agent_id = r.agent_id AND o.project_id = r.project_id AND o.archived_at IS NULL
                 AND o.next_retry_at = 'infinity' AND o.status = 'queued' LIMIT r.max_queued_turns) o) AS is_full,
           (SELECT x.status FROM resource.project_agents x
            WHERE x.agent_id = r.agent_id AND x.project_id = r.project_id) IS DISTINCT FROM a.status OR EXISTS (
               SELECT FROM state.agent_inbox o
               WHERE o.correlation_id = r.correlation_id AND o.project_id = r.project_id
                 AND o.message_type = r.message_type) AS has_changed,
           coalesce(greatest(h.turn_epoch, (SELECT e.epoch_floor FROM state.ledger_era e WHERE e.is_only)), 0) + 1
               AS next_epoch,
           limits IS NOT NULL OR r.purse IS NOT NULL OR EXISTS (
               SELECT FROM state.project_budgets b WHERE b.project_id = r.project_id) AS is_limited
    INTO q FROM (SELECT h.status = 'idle' AND h.paused_at_epoch IS NULL AS idle) i;
    q.may_run := q.may_run AND NOT q.is_stranded;
    IF q.has_changed THEN  -- while this waited for a lock
        RAISE EXCEPTION 'another transaction was first' USING ERRCODE = 'serialization_failure';
    END IF;
    verdict := CASE WHEN q.may_run THEN 'accepted'
        WHEN r.message_type = 'ui_action' THEN 'busy' WHEN q.is_full THEN 'queue_full' ELSE 'accepted' END;
    IF verdict <> 'accepted' THEN
        RETURN;
    END IF;

    IF q.is_limited THEN  -- what the turn may spend, and where that is counted: a trigger does, or refuses all of this
        plan := state.plan_budget(r.project_id, r.agent_turn_id, limits, r.purse);
    END IF;
    turn.agent_id := r.agent_id;
    turn.channel_id := r.channel_id;
    turn.agent_turn_id := r.agent_turn_id;
    turn.inbox_id := r.inbox_id;
    turn.message_type := r.message_type;
    turn.request_digest := r.request_digest;
    turn.turn_epoch := CASE WHEN q.may_run THEN q.next_epoch ELSE 0 END;
    turn.claimed := q.may_run AND a.worker_target = ANY (claimed_targets);
    turn.headers := jsonb_build_object('CG-Conversation-Id', turn.output_box_id) || r.context_headers
        || jsonb_build_object('CG-Recursion-Depth', depth::text);
    turn.settings := r.settings || CASE WHEN conversation_id IS NULL THEN '{}' ELSE jsonb_build_object(
            'conversation_id', conversation_id,
            'runtime_config', r.settings -> 'runtime_config' || '{"remember": true}') END
        || CASE WHEN person IS NULL THEN '{}' ELSE jsonb_build_object('end_user', person) END
        || CASE WHEN guards IS NULL THEN '{}' ELSE jsonb_build_object('guards', guards) END
        || CASE WHEN plan IS NULL THEN '{}' ELSE jsonb_build_object('budget', plan) END;
    turn.edge := r.metadata;
    turn.profile_box_id := a.profile_box_id;
    turn.inherits := CASE WHEN source IS NULL THEN '{}'::uuid[] ELSE ARRAY[source] END;
    turn.cards := r.cards;
    turn.created_at := clock_timestamp();
    IF conversation_id IS NOT NULL AND known_box IS NULL THEN
        INSERT INTO state.conversations (project_id, channel_id, agent_id, conversation_id, output_box_id, turn_count,
                                         last_turn_id)
        VALUES (r.project_id, r.channel_id, r.agent_id, conversation_id, turn.output_box_id, 1, r.agent_turn_id);
    ELSIF conversation_id IS NOT NULL THEN
        UPDATE state.conversations c SET turn_count = c.turn_count + 1, last_turn_id = r.agent_turn_id,
            updated_at = now()
        WHERE c.agent_id = r.agent_id AND c.conversation_id = enqueue_turn.conversation_id
          AND c.channel_id = r.channel_id AND c.project_id = r.project_id;
    END IF;
    IF a.agent_id IS NULL THEN
        INSERT INTO resource.project_agents (project_id, agent_id, profile_box_id, worker_target, tags, metadata)
        VALUES (r.project_id, r.agent_id, a.profile_box_id, a.worker_target, a.tags,
                jsonb_strip_nulls(jsonb_build_object(
                    'instance_of', r.instance_of, 'conversation_id', r.conversation_id,
                    'agent_turn_id', CASE WHEN r.conversation_id IS NULL THEN r.agent_turn_id END)));
        INSERT INTO state.identity_edges (edge_id, project_id, channel_id, action, target_agent_id, trace_id, metadata)
        VALUES ('instance-' || r.agent_turn_id, r.project_id, r.channel_id, 'ensure', r.agent_id,
                split_part(turn.headers ->> 'traceparent', '-', 2), jsonb_build_object('instance_of', r.instance_of));
    ELSIF a.status = 'dormant' THEN
        UPDATE resource.project_agents x SET status = 'active'
        WHERE x.agent_id = r.agent_id AND x.project_id = r.project_id;
    END IF;
    PERFORM state.write_turns(r.project_id, ARRAY[turn]);
    queued_because := CASE WHEN q.may_run THEN NULL WHEN h.paused_at_epoch IS NOT NULL THEN 'agent_paused'
        WHEN h.status <> 'idle' OR q.is_stranded THEN 'agent_busy' ELSE 'output_box_busy' END;
    status := CASE WHEN NOT q.may_run THEN 'queued' WHEN turn.claimed THEN 'processing' ELSE 'pending' END;
    worker_target := a.worker_target;
    leased_at := CASE WHEN q.may_run THEN now() END;
    is_stranded := q.is_stranded AND r.message_type = 'turn';
END $$;
