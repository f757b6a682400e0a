"""Eras of the ledger (protocol §16): the epochs of two histories never meet."""

import asyncio

import pytest

from tests.support.ledger.agents import ALICE, BOB, begin, commit, finish, head, lease, rows
from tests.support.ledger.calls import expire, sleeper, waits
from tests.support.ledger.invariants import assert_invariants
from turnstile.ledger.pool import Pool
from turnstile.ledger.queries import query
from turnstile.schema.errors import StaleTurn
from turnstile.schema.ids import era_of, step_id, tool_call_id

NEW_HISTORY = "UPDATE state.ledger_era SET timeline_id = timeline_id - 1"
"""As if the server had been promoted since the row was written."""
