"""What turns ask people, as programs see and decide it (protocol §13, docs/people.md).

    for interrupt in await client.interrupts():
        print(interrupt.message, interrupt.arguments)
        await interrupt.approve()

A decision names the digest of the call as it was read here. What a model or tool wrote (`message` of a question,
`arguments`) is data: show it as such.
"""

from pydantic import JsonValue

from turnstile.schema import verbs
from turnstile.schema.base import JsonObject
from turnstile.schema.errors import Refused
from turnstile.schema.ids import InterruptId
from turnstile.schema.people.approvals import Decision
from turnstile.schema.people.interrupt_requests import InterruptListRequest, InterruptRequest, InterruptView
from turnstile.schema.people.interrupts import DecideReply, DecideRequest, InterruptStatus
from turnstile.sdk.requests import parse_request
from turnstile.sdk.turn import Backend

PAGE = 100


class Interrupt:
    """A question to a person that a turn waits for. `Client.interrupts` and `Client.interrupt` make them."""

    def __init__(self, backend: Backend, view: InterruptView) -> None:
        self._backend = backend
        self.view = view
        """All of it, as it was when it was read."""

    @property
    def id(self) -> InterruptId:
        """Its id."""
        return self.view.interrupt_id

    @property
    def message(self) -> str:
        """What is asked; of `ask_human` a model wrote it."""
        return self.view.message

    @property
    def arguments(self) -> JsonObject | None:
        """All arguments of the call; a model wrote them."""
        return self.view.arguments

    @property
    def is_open(self) -> bool:
        """Whether it was open when it was read."""
        return self.view.status is InterruptStatus.OPEN

    async def approve(self, comment: str = "") -> DecideReply:
        """Send the call as it is.

        This and the other decisions raise `Refused` with a code (`already_decided`, `expired`, `withdrawn`,
        `digest_mismatch`, `own_request`, `own_words`, `decision_not_allowed`, …) or `ServerUnavailable`: the same call
        may then be repeated.
        """
        return await self._decide({"decision": Decision.APPROVE, "message": comment})

    async def edit(self, arguments: JsonObject, comment: str = "") -> DecideReply:
        """Send the call with these arguments, which take the place of all that the model gave."""
        return await self._decide({"decision": Decision.EDIT, "arguments": arguments, "message": comment})

    async def reject(self, reason: str = "") -> DecideReply:
        """Reject a call: it is not sent, and the model reads the reason."""
        return await self._decide({"decision": Decision.REJECT, "message": reason})

    async def respond(self, response: JsonValue, comment: str = "") -> DecideReply:
        """Answer a question; or answer a call yourself: it is not sent, and this is its result."""
        return await self._decide({"decision": Decision.RESPOND, "response": response, "message": comment})

    async def _decide(self, decision: JsonObject) -> DecideReply:
        if self.is_open and not self.view.is_what_is_shown:
            raise Refused("digest_mismatch", "the digest is not that of the call as it was read: read it again")
        named: JsonObject = {"interrupt_id": self.id, "action_digest": self.view.action_digest}
        request = parse_request(DecideRequest, {**named, **decision})
        return await self._backend.call(verbs.DECIDE, request, self.view.channel_id)


async def find_interrupts(backend: Backend, query: InterruptListRequest, limit: int) -> list[Interrupt]:
    """The questions, the newest first, each with its call."""
    ids: list[InterruptId] = []
    while len(ids) < limit:
        page = query.model_copy(update={"limit": min(PAGE, limit - len(ids))})
        reply = await backend.call(verbs.INTERRUPT_LIST, page)
        ids += [interrupt.interrupt_id for interrupt in reply.interrupts]
        if reply.next is None:
            break
        query = query.model_copy(update={"after": reply.next})
    return [await get_interrupt(backend, interrupt_id) for interrupt_id in ids]


async def get_interrupt(backend: Backend, interrupt_id: InterruptId) -> Interrupt:
    """The question with its call; raises `Refused` (unknown_interrupt) or `ServerUnavailable`."""
    request = parse_request(InterruptRequest, {"interrupt_id": interrupt_id})
    reply = await backend.call(verbs.INTERRUPT_GET, request)
    if reply.interrupt is None:
        raise Refused("internal_error", "the bridge found a question and showed none")
    return Interrupt(backend, reply.interrupt)
