-- after_execution of a result of a v1r4 tool that does not say: v1r4's reader refuses a card without one.
CREATE OR REPLACE FUNCTION state.after_execution_of(project text, tool text) RETURNS text LANGUAGE sql STABLE
RETURN CASE (SELECT t.after_execution FROM resource.tools t WHERE t.project_id = project AND t.tool_name = tool)
       WHEN 'terminate' THEN 'terminate' ELSE 'suspend' END;
