-- Every table that says of its rows which project they are of, and the column that says so. Rows of other tables go
-- with these.
CREATE OR REPLACE VIEW state.project_tables AS
SELECT format('%I.%I', n.nspname, c.relname) AS table_name, a.attname::text AS project_column,
    pg_relation_size(c.oid) / current_setting('block_size')::bigint AS blocks
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname IN ('project_id', 'tenant_id') AND NOT a.attisdropped
WHERE n.nspname IN ('public', 'resource', 'state') AND c.relkind = 'r';
