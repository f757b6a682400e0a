-- A project's refusals, for people.
CREATE INDEX rejections_project ON state.rejections (project_id COLLATE "C", rejection_id);
