"""Eras of the ledger (protocol §16)."""

from turnstile.ledger.pool import Pool


async def test_the_first_session_that_writes_begins_era_0(pool: Pool) -> None:
    async with pool.connection() as conn:
        [first] = await conn.fetch("SELECT * FROM state.enter_era()")
        [again] = await conn.fetch("SELECT * FROM state.enter_era()")
        print(first)
        await conn.execute("UPDATE state.ledger_era SET timeline_id = timeline_id + 1")
        [now] = await conn.fetch("SELECT * FROM state.enter_era()")
        print(now)
    assert first == again
    assert (first["era"], first["epoch_floor"], now["era"]) == (0, 0, 1)
    assert first["ledger_id"] == now["ledger_id"]
