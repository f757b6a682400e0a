-- Rows of some tables out of a database and back into it, each in one round trip (lab/explore/states/place.py). The functions are
-- made for the tables that the setting explore.tables names, so that their plans are kept.

CREATE SCHEMA explore;

-- What of Temporal the ledger cannot see: the turns that had a workflow, and whether it still knows that (lab/explore/net.py).
CREATE TABLE explore.workflows (agent_turn_id text PRIMARY KEY, known boolean NOT NULL);

DO $make$
DECLARE
    t record;
    reads text[] := '{}';
    writes text := '';
    holds text := '';
BEGIN
    FOR t IN
        SELECT w.name AS place, c.relname AS name, (
                   SELECT string_agg(format('x.%I::text', a.attname), ' || ''/'' || ' ORDER BY k.place)
                   FROM unnest(i.indkey::int2[]) WITH ORDINALITY k (attnum, place)
                   JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.attnum) AS key, (
                   SELECT string_agg(quote_ident(a.attname), ', ' ORDER BY a.attnum) FROM pg_attribute a
                   WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = '') AS given
        FROM unnest(string_to_array(current_setting('explore.tables'), ',')) WITH ORDINALITY w (name, place)
        JOIN pg_class c ON c.oid = w.name::regclass JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary
        ORDER BY w.place
    LOOP
        reads := reads || format('SELECT %L, %s, to_jsonb(x)::text FROM %s x WHERE x.xmin::text::bigint > $1', t.name, t.key, t.place);
        writes := writes || format($write$
    IF given ? %1$L THEN
        DELETE FROM %2$s x WHERE %3$s = ANY (ARRAY(SELECT jsonb_array_elements_text(given -> %1$L -> 'gone')));
        INSERT INTO %2$s (%4$s) OVERRIDING SYSTEM VALUE SELECT %4$s FROM jsonb_populate_recordset(NULL::%2$s, given -> %1$L -> 'rows');
    END IF;$write$, t.name, t.place, t.key, t.given);
        holds := holds || format(' IF name = %L THEN PERFORM FROM %s x WHERE %s = key FOR UPDATE; END IF;', t.name, t.place, t.key);
    END LOOP;
    -- The rows that transactions after the given one have written.
    EXECUTE format('CREATE FUNCTION explore.changes(bigint) RETURNS TABLE (name text, key text, data text) LANGUAGE sql AS %L',
                   array_to_string(reads, ' UNION ALL '));
    -- Writes rows in the place of others; returns the number of its transaction. Triggers and foreign keys do not act.
    EXECUTE format('CREATE FUNCTION explore.load(given jsonb) RETURNS bigint LANGUAGE plpgsql AS %L',
                   'BEGIN' || writes || ' RETURN pg_current_xact_id()::text::bigint; END');
    -- Locks a row until the transaction ends.
    EXECUTE format('CREATE FUNCTION explore.hold(name text, key text) RETURNS void LANGUAGE plpgsql AS %L', 'BEGIN' || holds || ' END');
END $make$;
