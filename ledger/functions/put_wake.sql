-- Puts the schedule of a call of wake_me (protocol §20), once for each call: the agent goes on at `moment`, or when
-- `seconds` have passed, in the conversation of its turn, or with the boxes of that. The head's lock keeps the turn
-- from ending meanwhile, and the calls of one agent apart. What it may spend is decided when it fires: see wake_budget.
-- verdict: accepted | unknown_call | parent_over | parent_stopping | recursion_depth_exceeded | wake_is_past
-- | wake_is_too_late | budget_exceeded | too_many_wakes
CREATE OR REPLACE FUNCTION state.put_wake(project text, call text, moment timestamptz, seconds float8, instruction text,
    depth_limit integer, most integer, OUT verdict text, OUT schedule text, OUT fires_at timestamptz)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    w state.turn_waiting_tools;
    h state.agent_state_head;
    i state.agent_inbox;
    root text;
BEGIN
    SELECT x.* INTO w FROM state.turn_waiting_tools x WHERE x.tool_call_id = call AND x.project_id = project;
    IF NOT FOUND THEN
        verdict := 'unknown_call';
        RETURN;
    END IF;
    SELECT x.* INTO h FROM state.agent_state_head x
    WHERE x.agent_id = w.agent_id AND x.project_id = project FOR NO KEY UPDATE;
    schedule := 'wake-' || call;
    SELECT (x.timing ->> 'at')::timestamptz INTO fires_at FROM resource.schedules x
    WHERE x.project_id = project AND x.schedule_id = schedule AND x.waker_turn_id = w.agent_turn_id;
    IF FOUND THEN
        verdict := 'accepted';
        RETURN;
    END IF;
    SELECT x.* INTO w FROM state.turn_waiting_tools x
    WHERE x.tool_call_id = call AND x.project_id = project FOR NO KEY UPDATE;
    SELECT x.* INTO i FROM state.agent_inbox x
    WHERE x.agent_turn_id = w.agent_turn_id AND x.project_id = project AND x.message_type IN ('turn', 'ui_action');
    root := coalesce((SELECT n.root_turn_id FROM state.turn_nodes n WHERE n.agent_turn_id = w.agent_turn_id),
                     w.agent_turn_id);
    root := coalesce((SELECT x.root_turn_id FROM state.schedule_firings f
                      JOIN resource.schedules x ON x.project_id = f.project_id AND x.schedule_id = f.schedule_id
                      WHERE f.agent_turn_id = root AND f.project_id = project), root);
    fires_at := coalesce(moment, clock_timestamp() + make_interval(secs => seconds));
    verdict := CASE
        WHEN w.wait_status <> 'waiting' OR h.active_agent_turn_id IS DISTINCT FROM w.agent_turn_id
            OR h.turn_epoch <> w.turn_epoch THEN 'parent_over'
        WHEN EXISTS (SELECT FROM state.turn_nodes n
                     WHERE n.agent_turn_id = w.agent_turn_id AND n.stopping_at IS NOT NULL) THEN 'parent_stopping'
        WHEN h.active_recursion_depth + 1 >= depth_limit THEN 'recursion_depth_exceeded'
        WHEN fires_at <= clock_timestamp() THEN 'wake_is_past'
        WHEN fires_at > clock_timestamp() + interval '366 days' THEN 'wake_is_too_late'
        WHEN fires_at >= (SELECT b.until FROM state.budgets b WHERE b.budget_id = root) THEN 'budget_exceeded'
        WHEN most > 0 AND most <= (
            SELECT count(*) FROM resource.schedules x
            WHERE x.project_id = project AND x.settings ->> 'agent_id' = w.agent_id AND x.waker_turn_id IS NOT NULL
              AND x.next_at IS NOT NULL) THEN 'too_many_wakes'
        ELSE 'accepted' END;
    IF verdict <> 'accepted' THEN
        RETURN;
    END IF;
    INSERT INTO resource.schedules (project_id, schedule_id, channel_id, owner, settings, timing, anchor_at, next_at,
                                    waker_turn_id, root_turn_id, wake)
    VALUES (project, schedule, i.channel_id, coalesce(i.context_headers ->> 'CG-Sender', ''),
            jsonb_build_object('agent_id', w.agent_id, 'instruction', instruction, 'catchup_seconds', 31622400)
            || CASE WHEN i.payload ->> 'conversation_id' <> ''
                    THEN jsonb_build_object('conversation_id', i.payload -> 'conversation_id') ELSE '{}' END,
            jsonb_build_object('at', fires_at), clock_timestamp(), fires_at, w.agent_turn_id, root,
            jsonb_build_object('headers', i.context_headers - 'CG-Conversation-Id' || jsonb_build_object(
                'CG-Recursion-Depth', (h.active_recursion_depth + 1)::text, 'CG-Parent-Agent-Id', w.agent_id,
                'CG-Parent-Turn-Id', w.agent_turn_id, 'CG-Parent-Step-Id', w.step_id))
            || CASE WHEN i.payload ? 'conversation_id' THEN '{}' ELSE jsonb_build_object(
                'context_box_id', i.payload -> 'context_box_id', 'output_box_id', h.output_box_id) END);
END $$;
