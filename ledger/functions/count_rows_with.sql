-- How many rows of a project in a table hold a text, in any column. Reads the whole table.
CREATE OR REPLACE FUNCTION state.count_rows_with(place regclass, project_column name, project text, said text)
RETURNS bigint LANGUAGE plpgsql STABLE AS $$
DECLARE
    found bigint;
BEGIN
    EXECUTE format('SELECT count(*) FROM %s t WHERE t.%I = $1 AND (strpos(t::text, $2) > 0 OR strpos(t::text, $3) > 0)',
                   place, project_column) INTO found USING project, said, trim('"' FROM to_json(said)::text);
    RETURN found;
END $$;
