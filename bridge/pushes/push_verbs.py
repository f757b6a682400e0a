"""The verbs of receivers and webhooks: who is notified over HTTP, of what (protocol §17.3, §17.6)."""

import base64
import secrets

from turnstile.bridge.serving.micro_service import VerbRequest
from turnstile.ledger.pool import Pool
from turnstile.ledger.pushes.receivers import remove_receiver, set_receiver
from turnstile.ledger.pushes.webhooks import list_webhooks, put_webhook, remove_webhook, turn_webhook
from turnstile.runtime.faults import Fault, hit
from turnstile.runtime.outbound import Names, destination
from turnstile.schema.ids import AgentTurnId
from turnstile.schema.states import ReplyStatus
from turnstile.schema.wire.limits import UNLIMITED, Admission, Maker
from turnstile.schema.wire.push_requests import PushRemoveRequest, PushReply, PushSetRequest
from turnstile.schema.wire.webhook_requests import (
    PREFIX,
    TurnWebhookRequest,
    WebhookListReply,
    WebhookListRequest,
    WebhookPutRequest,
    WebhookRemoveRequest,
    WebhookReply,
    WebhookSettings,
)


class PushVerbs:
    """The verbs over one ledger; each sees the channel of its subject alone."""

    def __init__(self, pool: Pool, names: Names, *, private: bool, admission: Admission = UNLIMITED) -> None:
        self._admission = admission
        self._pool = pool
        self._names = names
        self._private = private

    async def push_set(self, request: VerbRequest) -> PushReply:
        """Notify a receiver of a turn from now on.

        Raises `Refused` (push_url_refused, unknown_turn, too_many_receivers), or `Limited` (pushes_full).
        """
        body = request.parse(PushSetRequest)
        await destination(body.url, self._names, request.project_id, private=self._private)
        await self._pool.run(
            lambda conn: set_receiver(
                conn,
                request.project_id,
                request.channel_id,
                body.agent_turn_id,
                body.receiver_id,
                url=body.url,
                token=body.token,
                maker=request.maker(self._admission),
            )
        )
        hit(Fault.RECEIVER_SET)
        return _accepted(body)

    async def push_remove(self, request: VerbRequest) -> PushReply:
        """Notify a receiver no more."""
        body = request.parse(PushRemoveRequest)
        where = request.project_id, request.channel_id, body.agent_turn_id, body.receiver_id
        await self._pool.run(lambda conn: remove_receiver(conn, *where))
        hit(Fault.RECEIVER_REMOVED)
        return _accepted(body)

    async def webhook_put(self, request: VerbRequest) -> WebhookReply:
        """Set a webhook of the project or of a profile.

        Raises `Refused` (forbidden, push_url_refused, unknown_profile, too_many_webhooks).
        """
        caller, body = request.operator(), request.parse(WebhookPutRequest)
        secret = await self._put(request, body, body.webhook_id, Maker(caller.name), profile_name=body.profile_name)
        return WebhookReply(status=ReplyStatus.ACCEPTED, webhook_id=body.webhook_id, secret=secret)

    async def turn_webhook(self, request: VerbRequest) -> WebhookReply:
        """Set the caller's webhook of a turn.

        Raises `Refused` (push_url_refused, unknown_turn), or `Limited` (pushes_full).
        """
        body, maker = request.parse(TurnWebhookRequest), request.maker(self._admission)
        turn = body.agent_turn_id
        secret = await self._put(request, body, turn_webhook(turn, maker), maker, agent_turn_id=turn)
        return WebhookReply(status=ReplyStatus.ACCEPTED, webhook_id=turn, secret=secret)

    async def _put(
        self,
        request: VerbRequest,
        body: WebhookSettings,
        webhook: str,
        maker: Maker,
        *,
        profile_name: str | None = None,
        agent_turn_id: AgentTurnId | None = None,
    ) -> str | None:
        """Set it; returns its secret, if one was made."""
        await destination(body.url, self._names, request.project_id, private=self._private)
        generated = PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()
        await self._pool.run(
            lambda conn: put_webhook(
                conn,
                request.project_id,
                request.channel_id,
                webhook,
                url=body.url,
                secret=body.secret or generated,
                events=body.events,
                maker=maker,
                profile_name=profile_name,
                agent_turn_id=agent_turn_id,
            )
        )
        hit(Fault.RECEIVER_SET)
        return None if body.secret else generated

    async def webhook_list(self, request: VerbRequest) -> WebhookListReply:
        """The webhooks of the project and its profiles; raises `Refused` (forbidden)."""
        request.operator()
        request.parse(WebhookListRequest)
        webhooks = await self._pool.run(lambda conn: list_webhooks(conn, request.project_id))
        return WebhookListReply(status=ReplyStatus.ACCEPTED, webhooks=webhooks)

    async def webhook_remove(self, request: VerbRequest) -> WebhookReply:
        """Remove a webhook; raises `Refused` (forbidden, unknown_webhook)."""
        request.operator()
        body = request.parse(WebhookRemoveRequest)
        await self._pool.run(lambda conn: remove_webhook(conn, request.project_id, body.webhook_id))
        hit(Fault.RECEIVER_REMOVED)
        return WebhookReply(status=ReplyStatus.ACCEPTED, webhook_id=body.webhook_id)


def _accepted(request: PushSetRequest | PushRemoveRequest) -> PushReply:
    status, turn, receiver = ReplyStatus.ACCEPTED, request.agent_turn_id, request.receiver_id
    return PushReply(status=status, agent_turn_id=turn, receiver_id=receiver)
