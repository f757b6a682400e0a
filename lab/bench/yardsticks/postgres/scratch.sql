-- A database that is made for a measurement, and goes with it. Names are drawn by us, and quoted by the caller.

-- name: make_database :exec
-- A new, empty one.
CREATE DATABASE {NAME} TEMPLATE template0;

-- name: drop_database :exec
-- Gone, whoever is connected.
DROP DATABASE IF EXISTS {NAME} WITH (FORCE);

-- name: tidy :exec
-- What autovacuum would have done by and by.
VACUUM (ANALYZE);
