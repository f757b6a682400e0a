-- Eras of the ledger (protocol §16): a history that another one has replaced, by a failover that lost commits or by a
-- restored backup, and the history that goes on share no epoch. One row; the first session that writes makes it, so
-- that a copy of an empty ledger is another one.
CREATE TABLE state.ledger_era (
    is_only           boolean PRIMARY KEY DEFAULT true CHECK (is_only),
    ledger_id         uuid NOT NULL DEFAULT gen_random_uuid(),
    era               bigint NOT NULL DEFAULT 0 CHECK (era >= 0),
    epoch_floor       bigint NOT NULL DEFAULT 0 CHECK (epoch_floor >= 0),
    system_identifier bigint NOT NULL,
    timeline_id       bigint NOT NULL,
    database_oid      bigint NOT NULL,
    carried_count     integer NOT NULL DEFAULT 0,
    begun_at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    compared_era      bigint NOT NULL DEFAULT 0
);

COMMENT ON COLUMN state.ledger_era.ledger_id IS 'of this ledger in all of its eras; workflows carry it';
COMMENT ON COLUMN state.ledger_era.era IS '0: the first';
COMMENT ON COLUMN state.ledger_era.epoch_floor IS
    'epochs of this era are at least this: 0 in era 0, else the second of its begin since 2026, times 2^20';
COMMENT ON COLUMN state.ledger_era.timeline_id IS
    'of the server when the era began; with system_identifier and database_oid it distinguishes histories';
COMMENT ON COLUMN state.ledger_era.carried_count IS 'turns that were in hand as the era began';
COMMENT ON COLUMN state.ledger_era.compared_era IS
    'the last era in which what NATS holds of the one before was compared with the ledger';
