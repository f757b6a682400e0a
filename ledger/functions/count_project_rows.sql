-- The rows of a project among some blocks of a table: how many there are, or were.
CREATE OR REPLACE FUNCTION state.count_project_rows(place regclass, project_column name, project text,
    first_block bigint, end_block bigint)
RETURNS bigint LANGUAGE plpgsql STABLE AS $$
DECLARE
    found bigint;
BEGIN
    EXECUTE format('SELECT count(*) FROM %s WHERE ctid >= %L::tid AND ctid < %L::tid AND %I = $1', place,
                   format('(%s,0)', first_block), format('(%s,0)', end_block), project_column) INTO found USING project;
    RETURN found;
END $$;
