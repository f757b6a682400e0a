-- The tables and statements of pgbench's "TPC-B (sort of)", as its manual gives them.

-- name: make_branches :exec
-- A branch for each unit of scale.
CREATE TABLE pgbench_branches (bid int NOT NULL PRIMARY KEY, bbalance int, filler char(88)) WITH (fillfactor = 100);

-- name: make_tellers :exec
-- Ten tellers a branch.
CREATE TABLE pgbench_tellers (tid int NOT NULL PRIMARY KEY, bid int, tbalance int, filler char(84)) WITH (fillfactor = 100);

-- name: make_accounts :exec
-- A hundred thousand accounts a branch.
CREATE TABLE pgbench_accounts (aid int NOT NULL PRIMARY KEY, bid int, abalance int, filler char(84)) WITH (fillfactor = 100);

-- name: make_history :exec
-- A row for each transaction.
CREATE TABLE pgbench_history (tid int, bid int, aid int, delta int, mtime timestamp, filler char(22));

-- name: fill_branches :exec
-- All of them.
INSERT INTO pgbench_branches (bid, bbalance) SELECT n, 0 FROM generate_series(1, :scale::int) n;

-- name: fill_tellers :exec
-- All of them.
INSERT INTO pgbench_tellers (tid, bid, tbalance) SELECT n, (n - 1) / 10 + 1, 0 FROM generate_series(1, 10 * :scale::int) n;

-- name: fill_accounts :exec
-- All of them.
INSERT INTO pgbench_accounts (aid, bid, abalance, filler)
SELECT n, (n - 1) / 100000 + 1, 0, '' FROM generate_series(1, 100000 * :scale::int) n;

-- name: update_account :exec
-- The first statement of a transaction.
UPDATE pgbench_accounts SET abalance = abalance + :delta::int WHERE aid = :aid::int;

-- name: read_account :one
-- The second.
SELECT abalance FROM pgbench_accounts WHERE aid = :aid::int;

-- name: update_teller :exec
-- The third.
UPDATE pgbench_tellers SET tbalance = tbalance + :delta::int WHERE tid = :tid::int;

-- name: update_branch :exec
-- The fourth.
UPDATE pgbench_branches SET bbalance = bbalance + :delta::int WHERE bid = :bid::int;

-- name: add_history :exec
-- The fifth.
INSERT INTO pgbench_history (tid, bid, aid, delta, mtime)
VALUES (:tid::int, :bid::int, :aid::int, :delta::int, CURRENT_TIMESTAMP);
