-- The state of agents and turns (protocol §3, §4), and what the database holds of its invariants (§2).
-- Selective columns come first in every index: a generic plan made while tables were empty must stay right as they grow.

-- Casts for what strangers write: null instead of an error that would hang the statement which reads it.
CREATE FUNCTION state.as_uuid(value text) RETURNS uuid LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN value ~ '^[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$' THEN value::uuid END;

CREATE FUNCTION state.as_count(value text) RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN value ~ '^[0-9]{1,9}$' THEN value::integer END;

-- One row per agent: the only place where its current turn is decided.
-- queue_seq rises with every enqueue, so that a finish that waited for one sees that its picture of the queue is old.
-- output_position is the last position that its turn knows to be used in output_box_id (0 until it begins); step_count the steps committed in this turn;
-- step_attempt the streams started for the step in hand; model_failures the failed model calls among them.
CREATE TABLE state.agent_state_head (
    project_id               text NOT NULL,
    agent_id                 text NOT NULL,
    status                   text NOT NULL DEFAULT 'idle'
                             CHECK (status IN ('idle', 'dispatched', 'running', 'suspended')),
    active_agent_turn_id     text,
    active_inbox_id          text,
    active_channel_id        text,
    turn_epoch               bigint NOT NULL DEFAULT 0,
    active_recursion_depth   integer NOT NULL DEFAULT 0,
    updated_at               timestamptz NOT NULL DEFAULT now(),
    parent_step_id           text,
    trace_id                 text,
    profile_box_id           uuid,
    context_box_id           uuid,
    output_box_id            uuid,
    expecting_correlation_id text,
    waiting_tool_count       integer NOT NULL DEFAULT 0 CHECK (waiting_tool_count >= 0),
    resume_deadline          timestamptz,
    restart_count            integer NOT NULL DEFAULT 0,
    queue_seq                bigint NOT NULL DEFAULT 0,
    output_position          bigint NOT NULL DEFAULT 0,
    step_count               integer NOT NULL DEFAULT 0,
    step_attempt             integer NOT NULL DEFAULT 0,
    model_failures           integer NOT NULL DEFAULT 0,
    started_at               timestamptz,
    PRIMARY KEY (agent_id, project_id),
    CONSTRAINT idle_holds_nothing CHECK (
        CASE WHEN status = 'idle'
             THEN active_agent_turn_id IS NULL AND context_box_id IS NULL AND output_box_id IS NULL
             ELSE active_agent_turn_id IS NOT NULL AND context_box_id IS NOT NULL AND output_box_id IS NOT NULL
        END)
) WITH (fillfactor = 50);
-- Invariant 1, and the list of busy heads.
CREATE UNIQUE INDEX head_output_box ON state.agent_state_head (output_box_id) WHERE output_box_id IS NOT NULL;

CREATE TABLE state.agent_state_pointers (
    project_id            text NOT NULL,
    agent_id              text NOT NULL,
    memory_context_box_id uuid,
    last_output_box_id    uuid,
    updated_at            timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (agent_id, project_id)
) WITH (fillfactor = 70);

CREATE TABLE state.agent_inbox (
    inbox_id        text PRIMARY KEY,
    project_id      text NOT NULL,
    agent_id        text NOT NULL,
    channel_id      text NOT NULL DEFAULT 'public',
    message_type    text NOT NULL,
    enqueue_mode    text,
    correlation_id  text,
    agent_turn_id   text,
    turn_epoch      bigint,
    context_headers jsonb NOT NULL DEFAULT '{}',
    payload         jsonb NOT NULL DEFAULT '{}',
    status          text NOT NULL DEFAULT 'pending'
                    CHECK (status IN ('queued', 'pending', 'processing', 'deferred', 'consumed', 'skipped', 'error')),
    retry_count     integer NOT NULL DEFAULT 0,
    next_retry_at   timestamptz NOT NULL,
    last_error      text,
    defer_reason    text,
    processed_at    timestamptz,
    archived_at     timestamptz,
    created_at      timestamptz NOT NULL,
    request_digest  text,
    -- Leases read these of a queued row, so a row without them never enters the queue.
    CONSTRAINT queued_turn_is_legal CHECK (
        status <> 'queued'
        OR (message_type = 'turn' AND agent_turn_id IS NOT NULL AND next_retry_at = 'infinity'
            AND state.as_uuid(payload ->> 'profile_box_id') IS NOT NULL
            AND state.as_uuid(payload ->> 'context_box_id') IS NOT NULL
            AND state.as_uuid(payload ->> 'output_box_id') IS NOT NULL)),
    CONSTRAINT final_is_archived CHECK ((status IN ('consumed', 'skipped', 'error')) = (archived_at IS NOT NULL))
) WITH (fillfactor = 80);
CREATE UNIQUE INDEX inbox_correlation ON state.agent_inbox (correlation_id, project_id, message_type);
-- No status in an index or predicate: it changes often, and these updates stay heap-only. Live rows only, so both stay
-- small: claim and next-queued (queued rows wait at 'infinity') use the first, the watchdog the second.
CREATE INDEX inbox_live ON state.agent_inbox (agent_id, project_id, next_retry_at, created_at) WHERE archived_at IS NULL;
CREATE INDEX inbox_due ON state.agent_inbox (next_retry_at) WHERE archived_at IS NULL;
CREATE INDEX inbox_turn ON state.agent_inbox (agent_turn_id);
-- For the lists that people read. Its collation keeps it from the other statements, which would use it by its project.
CREATE INDEX inbox_created ON state.agent_inbox (project_id COLLATE "C", created_at);

-- What a v1r4 writer leaves out, or writes as null: it keeps ids in the payload and knows no retry clock.
CREATE FUNCTION state.fill_inbox() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.channel_id := coalesce(NEW.channel_id, 'public');
    NEW.status := coalesce(NEW.status, 'pending');
    NEW.retry_count := coalesce(NEW.retry_count, 0);
    NEW.payload := coalesce(NEW.payload, '{}');
    NEW.context_headers := jsonb_build_object(
        'CG-Recursion-Depth', '0',
        'traceparent', format('00-%s-%s-01', replace(gen_random_uuid()::text, '-', ''),
                              left(replace(gen_random_uuid()::text, '-', ''), 16))
    ) || coalesce(jsonb_strip_nulls(NEW.context_headers), '{}');
    NEW.created_at := coalesce(NEW.created_at, clock_timestamp());
    NEW.next_retry_at := coalesce(NEW.next_retry_at, CASE WHEN NEW.status = 'queued' THEN 'infinity' ELSE now() END);
    NEW.agent_turn_id := coalesce(NEW.agent_turn_id, NEW.payload ->> 'agent_turn_id');
    NEW.turn_epoch := coalesce(NEW.turn_epoch, state.as_count(NEW.payload ->> 'turn_epoch'), 0);
    NEW.correlation_id := coalesce(NEW.correlation_id, NEW.payload ->> 'tool_call_id', NEW.payload ->> 'correlation_id');
    RETURN NEW;
END $$;
CREATE TRIGGER inbox_filled BEFORE INSERT ON state.agent_inbox FOR EACH ROW
    WHEN (NEW.created_at IS NULL OR NEW.next_retry_at IS NULL OR NEW.agent_turn_id IS NULL OR NEW.turn_epoch IS NULL
          OR NEW.correlation_id IS NULL OR NEW.channel_id IS NULL OR NEW.status IS NULL OR NEW.retry_count IS NULL
          OR NEW.payload IS NULL OR NEW.context_headers ->> 'traceparent' IS NULL
          OR NEW.context_headers ->> 'CG-Recursion-Depth' IS NULL)
    EXECUTE FUNCTION state.fill_inbox();

-- The turns that wait, with what a lease puts on the head.
CREATE VIEW state.queued_turns AS
SELECT i.inbox_id, i.project_id, i.agent_id, i.agent_turn_id, i.channel_id, i.created_at,
       state.as_uuid(i.payload ->> 'profile_box_id') AS profile_box_id,
       state.as_uuid(i.payload ->> 'context_box_id') AS context_box_id,
       state.as_uuid(i.payload ->> 'output_box_id') AS output_box_id,
       split_part(i.context_headers ->> 'traceparent', '-', 2) AS trace_id,
       i.context_headers ->> 'CG-Parent-Step-Id' AS parent_step_id,
       coalesce(state.as_count(i.context_headers ->> 'CG-Recursion-Depth'), 0) AS recursion_depth, i.context_headers
FROM state.agent_inbox i
WHERE i.archived_at IS NULL AND i.next_retry_at = 'infinity' AND i.status = 'queued';

CREATE TABLE state.turn_waiting_tools (
    project_id          text NOT NULL,
    agent_id            text NOT NULL,
    agent_turn_id       text NOT NULL,
    turn_epoch          bigint NOT NULL,
    step_id             text NOT NULL,
    tool_call_id        text NOT NULL,
    tool_name           text NOT NULL,
    wait_status         text NOT NULL DEFAULT 'waiting'
                        CHECK (wait_status IN ('waiting', 'received', 'applied', 'expired', 'dropped')),
    tool_result_card_id text,
    received_at         timestamptz,
    applied_at          timestamptz,
    created_at          timestamptz NOT NULL DEFAULT now(),
    updated_at          timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tool_call_id, project_id)
) WITH (fillfactor = 80);
CREATE INDEX waiting_turn ON state.turn_waiting_tools (agent_turn_id);

CREATE TABLE state.agent_steps (
    project_id     text NOT NULL,
    agent_id       text NOT NULL,
    step_id        text NOT NULL,
    agent_turn_id  text NOT NULL,
    channel_id     text,
    parent_step_id text,
    trace_id       text,
    status         text NOT NULL CHECK (status IN ('running', 'completed', 'failed', 'canceled')),
    profile_box_id uuid,
    context_box_id uuid,
    output_box_id  uuid,
    request_box_id uuid,
    api_log_id     bigint,
    tool_call_ids  jsonb,
    error          text,
    metadata       jsonb NOT NULL DEFAULT '{}',
    started_at     timestamptz NOT NULL DEFAULT now(),
    ended_at       timestamptz,
    PRIMARY KEY (step_id, project_id)
);
CREATE INDEX steps_turn ON state.agent_steps (agent_turn_id);

CREATE TABLE state.execution_edges (
    edge_id              text PRIMARY KEY,
    project_id           text NOT NULL,
    channel_id           text,
    primitive            text NOT NULL CHECK (primitive IN ('enqueue', 'report', 'join', 'tool_call')),
    edge_phase           text NOT NULL CHECK (edge_phase IN ('request', 'response')),
    source_agent_id      text,
    source_agent_turn_id text,
    source_step_id       text,
    target_agent_id      text,
    target_agent_turn_id text,
    correlation_id       text,
    enqueue_mode         text,
    recursion_depth      integer,
    trace_id             text,
    parent_step_id       text,
    metadata             jsonb NOT NULL DEFAULT '{}',
    created_at           timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE UNIQUE INDEX edges_correlation ON state.execution_edges (correlation_id, project_id, primitive, edge_phase);
CREATE INDEX edges_trace ON state.execution_edges (trace_id);

CREATE TABLE state.identity_edges (
    edge_id         text PRIMARY KEY,
    project_id      text NOT NULL,
    channel_id      text,
    action          text NOT NULL,
    source_agent_id text,
    target_agent_id text NOT NULL,
    trace_id        text,
    parent_step_id  text,
    metadata        jsonb NOT NULL DEFAULT '{}',
    created_at      timestamptz NOT NULL DEFAULT now()
);

-- Invariants 3 and 4: one row per turn that ended, its deliverable not null; announced_at once its task event is safe.
CREATE TABLE state.turn_outcomes (
    agent_turn_id       text PRIMARY KEY,
    project_id          text NOT NULL,
    agent_id            text NOT NULL,
    channel_id          text NOT NULL,
    turn_epoch          bigint NOT NULL,
    inbox_id            text,
    status              text NOT NULL CHECK (status IN ('success', 'failed', 'canceled', 'timeout', 'partial')),
    deliverable_card_id text NOT NULL,
    tool_result_card_id text,
    output_box_id       uuid NOT NULL,
    error_code          text,
    error               text,
    stats               jsonb NOT NULL DEFAULT '{}',
    trace_id            text,
    started_at          timestamptz,
    ended_at            timestamptz NOT NULL DEFAULT clock_timestamp(),
    announced_at        timestamptz
) WITH (fillfactor = 80);
CREATE INDEX outcomes_unannounced ON state.turn_outcomes (ended_at) WHERE announced_at IS NULL;

-- What was refused, from whom, why; never a secret or a body.
CREATE TABLE state.rejections (
    rejection_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    project_id   text,
    source       text NOT NULL,
    error_code   text NOT NULL,
    error        text NOT NULL,
    ids          jsonb NOT NULL DEFAULT '{}',
    created_at   timestamptz NOT NULL DEFAULT now()
);

-- Who serves what, now.
CREATE TABLE state.workers (
    worker_target text NOT NULL,
    instance      text NOT NULL,
    last_seen_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (worker_target, instance)
) WITH (fillfactor = 50);

CREATE TABLE state.pmo_batches (
    batch_id             text PRIMARY KEY,
    project_id           text NOT NULL,
    parent_agent_id      text NOT NULL,
    parent_agent_turn_id text NOT NULL,
    parent_tool_call_id  text NOT NULL,
    parent_turn_epoch    bigint NOT NULL,
    parent_channel_id    text,
    task_count           integer NOT NULL,
    status               text NOT NULL DEFAULT 'running',
    deadline_at          timestamptz,
    metadata             jsonb NOT NULL DEFAULT '{}',
    created_at           timestamptz NOT NULL DEFAULT now(),
    updated_at           timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE state.pmo_batch_tasks (
    batch_task_id         text PRIMARY KEY,
    batch_id              text NOT NULL REFERENCES state.pmo_batches (batch_id) ON DELETE CASCADE,
    project_id            text NOT NULL,
    agent_id              text NOT NULL,
    status                text NOT NULL DEFAULT 'pending',
    retryable             boolean NOT NULL DEFAULT true,
    next_retry_at         timestamptz NOT NULL DEFAULT now(),
    attempt_count         integer NOT NULL DEFAULT 0,
    current_agent_turn_id text,
    current_turn_epoch    bigint,
    payload_hash          text,
    profile_box_id        uuid,
    context_box_id        uuid,
    output_box_id         uuid,
    error_box_id          uuid,
    error_detail          text,
    metadata              jsonb NOT NULL DEFAULT '{}',
    created_at            timestamptz NOT NULL DEFAULT now(),
    updated_at            timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX batch_tasks_batch ON state.pmo_batch_tasks (batch_id);

-- Invariant 9: a card enters a box only in the transaction that made the box, or into the output box of a busy head, or
-- through the statement that ends the turn which made the card. Runs once a statement, after all its parts.
CREATE FUNCTION state.guard_box_cards() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    refused uuid;
BEGIN
    SELECT a.box_id INTO refused
    FROM (SELECT DISTINCT box_id FROM added) a
    WHERE NOT EXISTS (SELECT FROM state.agent_state_head h WHERE h.output_box_id = a.box_id)
      AND NOT EXISTS (SELECT FROM public.boxes b WHERE b.box_id = a.box_id AND b.made_by = pg_current_xact_id())
      AND NOT EXISTS (
          SELECT FROM added x JOIN public.cards c ON c.card_id = x.card_id
          JOIN state.turn_outcomes o ON o.agent_turn_id = c.metadata ->> 'agent_turn_id'
          WHERE x.box_id = a.box_id AND o.output_box_id = a.box_id AND o.xmin = pg_current_xact_id()::xid)
    LIMIT 1;
    IF refused IS NOT NULL THEN
        RAISE EXCEPTION 'box % is closed: cards enter only the output box of a turn in hand', refused
            USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER box_cards_guarded AFTER INSERT ON public.box_cards
    REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION state.guard_box_cards();
