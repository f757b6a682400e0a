-- Where turns stand in their trees (protocol §12.9).

-- name: find_place :opt
-- The root of a turn's tree, and its parent; no row for a turn in no tree.
SELECT n.root_turn_id, n.parent_turn_id FROM state.turn_nodes n
WHERE n.agent_turn_id = :agent_turn_id AND n.project_id = :project_id;
