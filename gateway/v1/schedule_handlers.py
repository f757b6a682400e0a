"""`/v1/schedules`: turns that are asked for at times (protocol §20). All of it is asked of the bridge."""

from dataclasses import dataclass
from typing import Any

from turnstile.gateway.asking import Asking
from turnstile.gateway.http.endpoints import Answer, Call
from turnstile.schema import verbs
from turnstile.schema.api import SchedulePage, SchedulePageQuery, SchedulesQuery
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import ChannelId
from turnstile.schema.wire.schedule_requests import ScheduleListRequest


@dataclass(frozen=True, slots=True)
class Schedules:
    """The handlers, over one bridge."""

    asking: Asking

    async def list(self, call: Call[SchedulePageQuery, object]) -> Answer:
        """A page of the schedules of a channel."""
        channel = self.asking.channel(call.principal, call.query.channel_id)
        request = ScheduleListRequest(after=call.query.cursor, limit=call.query.limit)
        reply = await self.asking.ask(call.principal, channel, verbs.SCHEDULE_LIST, request, call.headers)
        return Answer(SchedulePage(schedules=list(reply.schedules), next=reply.next))

    async def lookup(self, call: Call[SchedulesQuery, Any]) -> tuple[ChannelId, JsonObject]:
        """The channel that the query names, and the schedule that the path does: the bridge looks there."""
        return self.asking.channel(call.principal, call.query.channel_id), dict(call.path)
