-- Fires a schedule (protocol §20): if it still is as the caller has read it, the turn of `request` is enqueued and
-- recorded at `nominal`, and the next time moves on to `following`. Of any number of callers one fires; a time that was
-- fired before, as after the clock was set back, is moved past. If the enqueue is refused nothing is written: the
-- caller says so by `refused`, with which nothing is enqueued and the code is recorded. Without `nominal` the time
-- moves only. A trigger (`due` null) moves nothing, and fires a paused schedule, too.
-- fired: stale (another was first: nothing was done) | moved | fired | refused; the rest as of enqueue_turn.
CREATE OR REPLACE FUNCTION state.fire_schedule(project text, schedule text, seen bigint, due timestamptz,
    nominal timestamptz, following timestamptz, refused text, why text, firing text, caller text, request jsonb,
    claimed_targets text[], OUT fired text, OUT verdict text, OUT turn state.new_turn, OUT status text,
    OUT queued_because text, OUT conversation_id text, OUT worker_target text, OUT leased_at timestamptz,
    OUT is_stranded boolean)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    s resource.schedules;
    made record;
BEGIN
    fired := 'stale';
    IF due IS NULL THEN
        SELECT x.* INTO s FROM resource.schedules x
        WHERE x.project_id = project AND x.schedule_id = schedule AND x.revision = seen FOR NO KEY UPDATE;
    ELSE
        SELECT x.* INTO s FROM resource.schedules x
        WHERE x.project_id = project AND x.schedule_id = schedule AND x.revision = seen AND x.next_at = due
          AND x.paused_at IS NULL FOR NO KEY UPDATE SKIP LOCKED;
    END IF;
    IF s.schedule_id IS NULL THEN
        RETURN;
    END IF;
    IF nominal IS NULL OR due IS NOT NULL AND EXISTS (
        SELECT FROM state.schedule_firings f
        WHERE f.project_id = project AND f.schedule_id = schedule AND f.nominal_at = nominal) THEN
        fired := 'moved';
    ELSIF refused IS NOT NULL THEN
        fired := 'refused';
    ELSIF state.is_revoked(project, s.owner) THEN
        fired := 'refused';
        verdict := 'owner_revoked';
        RETURN;
    ELSE
        SELECT e.* INTO made FROM state.enqueue_turn(CASE WHEN s.root_turn_id IS NULL THEN request
            ELSE request || state.wake_budget(project, s.root_turn_id) END, claimed_targets) e;
        verdict := made.verdict;
        turn := made.turn;
        status := made.status;
        queued_because := made.queued_because;
        conversation_id := made.conversation_id;
        worker_target := made.worker_target;
        leased_at := made.leased_at;
        is_stranded := made.is_stranded;
        IF verdict NOT IN ('accepted', 'duplicate') THEN
            fired := 'refused';
            RETURN;
        END IF;
        fired := 'fired';
    END IF;
    IF due IS NOT NULL THEN
        UPDATE resource.schedules x SET next_at = following, looked_at = clock_timestamp(),
            paused_at = CASE WHEN refused IN ('owner_revoked', 'schedule_invalid') THEN clock_timestamp() END,
            paused_because = CASE WHEN refused IN ('owner_revoked', 'schedule_invalid') THEN refused END
        WHERE x.project_id = project AND x.schedule_id = schedule;
    END IF;
    IF fired <> 'moved' AND (due IS NOT NULL OR verdict = 'accepted') THEN
        INSERT INTO state.schedule_firings (firing_id, project_id, schedule_id, nominal_at, agent_turn_id, code, error,
                                            triggered_by)
        VALUES (firing, project, schedule, nominal, turn.agent_turn_id, refused, why, caller);
    END IF;
END $$;
