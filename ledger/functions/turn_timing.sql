-- What the ledger's clock says of a turn that ends now (protocol §5, stats of the task event): nothing of the queue for
-- one that never began.
CREATE OR REPLACE FUNCTION state.turn_timing(enqueued_at timestamptz, started_at timestamptz) RETURNS jsonb
LANGUAGE sql VOLATILE
RETURN jsonb_strip_nulls(jsonb_build_object(
    'queue_delay_ms', round(extract(epoch FROM started_at - enqueued_at) * 1000)::bigint,
    'e2e_ms', round(extract(epoch FROM clock_timestamp() - enqueued_at) * 1000)::bigint));
