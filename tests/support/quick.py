"""Turns whose model is known to be fast, and the activities of a turn."""

import json

from temporalio.api.enums.v1 import EventType

from tests.support.faults.points import DONE
from tests.support.tenants import Tenant
from tests.support.tools import Hand
from turnstile.activities.turn.fast_answers import LEARNED_AFTER
from turnstile.schema.ids import AgentTurnId


async def learned(hand: Hand) -> Hand:
    """Run turns until the worker knows that the client's model is fast; returns the client."""
    for _ in range(LEARNED_AFTER):
        await hand.ended(await hand.start(DONE))
    return hand


async def shape(tenant: Tenant, turn: AgentTurnId) -> list[str]:
    """The activities of a turn in order, quick ones by the name of their marker."""
    history = await tenant.stack.history(turn)
    found: list[str] = []
    for event in history.events:
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            found.append(event.activity_task_scheduled_event_attributes.activity_type.name)
        elif event.event_type == EventType.EVENT_TYPE_MARKER_RECORDED:
            data = event.marker_recorded_event_attributes.details["data"].payloads[0].data
            found.append(json.loads(data)["activity_type"])
    return found
