-- The content of the result of a call that was not sent. It never ends the turn: the model may do something else.
CREATE OR REPLACE FUNCTION state.unsent_result(status text, code text, message text) RETURNS jsonb
LANGUAGE sql IMMUTABLE
RETURN jsonb_build_object('__type__', 'ToolResultContent', 'status', status, 'after_execution', 'suspend', 'result',
                          NULL, 'error', jsonb_build_object('code', code, 'message', message));
