-- Who may have written a result: a service or the system, and no agent (protocol §6, report).
CREATE OR REPLACE FUNCTION state.is_service(author text) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN coalesce(author = 'system' OR starts_with(author, 'tool.') OR starts_with(author, 'sys.'), false);
