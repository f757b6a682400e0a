-- Removes the rows of a project among some blocks of a table; returns how many.
CREATE OR REPLACE FUNCTION state.remove_project_rows(place regclass, project_column name, project text,
    first_block bigint, end_block bigint)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    removed bigint;
BEGIN
    EXECUTE format('DELETE FROM %s WHERE ctid >= %L::tid AND ctid < %L::tid AND %I = $1', place,
                   format('(%s,0)', first_block), format('(%s,0)', end_block), project_column) USING project;
    GET DIAGNOSTICS removed = ROW_COUNT;
    RETURN removed;
END $$;
