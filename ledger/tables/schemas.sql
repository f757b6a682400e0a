-- The schemas beside public: who is there (resource), and what turns do (state).
CREATE SCHEMA IF NOT EXISTS resource;
CREATE SCHEMA IF NOT EXISTS state;
