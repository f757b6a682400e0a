-- What a batch comes to by its counts; null while it is open. A task that is `partial` neither succeeds nor fails.
CREATE OR REPLACE FUNCTION state.verdict_of(b state.pmo_batches) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE
        WHEN b.fail_fast AND b.failed_count > 0 THEN 'failed'
        WHEN b.join_mode <> 'all' AND b.success_count >= b.k THEN 'success'
        WHEN b.join_mode <> 'all' AND b.success_count + b.open_count < b.k
        THEN CASE WHEN b.failed_count + b.open_count < b.task_count THEN 'partial' ELSE 'failed' END
        WHEN b.join_mode = 'all' AND b.open_count = 0
        THEN CASE b.task_count WHEN b.success_count THEN 'success' WHEN b.failed_count THEN 'failed' ELSE 'partial' END
    END
$$;
