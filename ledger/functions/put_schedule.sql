-- Puts a schedule (protocol §20). What is put again with the same timing keeps its next time and where it counts from,
-- so that a repeat neither skips a firing nor makes one. pauses null: as it is.
-- verdict: accepted | not_yours | unknown_agent | agent_inactive | unknown_profile | no_instances | too_many_schedules
-- | never_fires
CREATE OR REPLACE FUNCTION state.put_schedule(project text, channel text, schedule text, what jsonb, whenever jsonb,
    anchor timestamptz, next timestamptz, pauses boolean, caller text, operates boolean, most integer,
    OUT verdict text, OUT created boolean)
LANGUAGE plpgsql AS $$
DECLARE
    s resource.schedules;
    same boolean;
    target record;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('put_schedule/' || project, 0));
    SELECT x.* INTO s FROM resource.schedules x
    WHERE x.project_id = project AND x.schedule_id = schedule FOR NO KEY UPDATE;
    created := s.schedule_id IS NULL;
    same := NOT created AND s.timing = whenever;
    SELECT a.status, p.name, p.settings INTO target FROM (SELECT) AS always
    LEFT JOIN resource.project_agents a ON a.agent_id = what ->> 'agent_id' AND a.project_id = project
    LEFT JOIN resource.profiles p ON lower(p.name) = lower(what ->> 'profile_name') AND p.project_id = project;
    verdict := CASE
        WHEN NOT created AND (s.channel_id <> channel OR (s.owner <> caller AND NOT operates)) THEN 'not_yours'
        WHEN what ? 'agent_id' AND target.status IS NULL THEN 'unknown_agent'
        WHEN target.status NOT IN ('active', 'paused', 'dormant') THEN 'agent_inactive'
        WHEN what ? 'profile_name' AND target.name IS NULL THEN 'unknown_profile'
        WHEN what ? 'profile_name' AND target.settings -> 'instances' IS DISTINCT FROM 'true' THEN 'no_instances'
        WHEN created AND most <= (SELECT count(*) FROM resource.schedules x
                                       WHERE x.project_id = project AND x.waker_turn_id IS NULL)
        THEN 'too_many_schedules'
        WHEN next IS NULL AND NOT same THEN 'never_fires'
        ELSE 'accepted' END;
    IF verdict <> 'accepted' THEN
        RETURN;
    END IF;
    INSERT INTO resource.schedules AS x (project_id, schedule_id, channel_id, owner, owner_operates, settings, timing,
                                         anchor_at, next_at, paused_at, paused_because)
    VALUES (project, schedule, channel, caller, operates, what, whenever, anchor, next,
            CASE WHEN pauses THEN clock_timestamp() END, CASE WHEN pauses THEN 'paused' END)
    ON CONFLICT (project_id, schedule_id) DO UPDATE SET owner = excluded.owner,
        owner_operates = excluded.owner_operates, settings = excluded.settings, timing = excluded.timing,
        anchor_at = CASE WHEN same THEN x.anchor_at ELSE excluded.anchor_at END,
        next_at = CASE WHEN same AND (x.paused_at IS NULL OR pauses IS DISTINCT FROM false) THEN x.next_at
                       ELSE excluded.next_at END,
        looked_at = clock_timestamp(), revision = x.revision + 1, updated_at = now(),
        waker_turn_id = NULL, root_turn_id = NULL, wake = NULL,
        paused_at = CASE WHEN pauses THEN coalesce(x.paused_at, clock_timestamp()) WHEN pauses IS NULL THEN x.paused_at
                    END,
        paused_because = CASE WHEN pauses THEN coalesce(x.paused_because, 'paused') WHEN pauses IS NULL
                              THEN x.paused_because END;
END $$;
