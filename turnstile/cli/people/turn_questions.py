"""The open questions of a turn that is shown live: looked for once a second, and answered where that is done."""

import asyncio

from turnstile.cli.errors import failure_of
from turnstile.cli.people.approval_report import summary_of
from turnstile.cli.people.quoting import answer_of, escaped, quoted_text, quoted_value
from turnstile.cli.session import Session
from turnstile.cli.turns.follow import same_options
from turnstile.schema.errors import TurnstileError
from turnstile.schema.ids import AgentTurnId, InterruptId
from turnstile.schema.people.approvals import Decision
from turnstile.schema.people.interrupts import InterruptReason
from turnstile.sdk.interrupts import Interrupt
from turnstile.sdk.turns import Client

LOOK_SECONDS = 1.0
APPROVE, REJECT, RESPOND = "/approve", "/reject", "/respond"
_SAID = {
    Decision.APPROVE: "approved",
    Decision.EDIT: "approved with other arguments",
    Decision.REJECT: "rejected",
    Decision.RESPOND: "answered",
}
"""What is printed of a decision that counts."""


class TurnQuestions:
    """What one turn asks people. With `answers` the person at the terminal answers here, one question after another."""

    def __init__(self, session: Session, client: Client, turn: AgentTurnId, *, answers: bool) -> None:
        self._session = session
        self._client = client
        self._turn = turn
        self._answers = answers
        self._open: dict[InterruptId, Interrupt] = {}
        self._shown: set[InterruptId] = set()

    async def watch(self) -> None:
        """Print what is asked, until cancelled. A server that is away is asked again later."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                await self._look()
            except TurnstileError:
                continue

    @property
    def current(self) -> Interrupt | None:
        """The question that the next answer is for."""
        return (
            next((question for question in self._open.values() if question.id in self._shown), None)
            if self._answers
            else None
        )

    def wants(self, line: str) -> bool:
        """Whether this line is an answer."""
        if (question := self.current) is None:
            return False
        if line.strip().partition(" ")[0] in (APPROVE, REJECT, RESPOND):
            return True
        return (
            question.view.reason is InterruptReason.INPUT_REQUIRED and not line.startswith("/") and bool(line.strip())
        )

    async def take(self, line: str) -> None:
        """Decide the current question; what goes wrong is printed, and it stays open."""
        question, out = self.current, self._session.out
        if question is None:
            return
        word, _, rest = line.strip().partition(" ")
        try:
            match word:
                case "/approve":
                    reply = await question.approve()
                case "/reject":
                    reply = await question.reject(rest)
                case _:
                    answer = rest if word == RESPOND else line.strip()
                    reply = await question.respond(answer_of(answer, question.view.response_schema))
        except TurnstileError as error:
            out.failure(failure_of(error))
            return
        self._open.pop(question.id, None)
        out.remark(
            "the tool was changed meanwhile: the call was not sent"
            if reply.tool_changed
            else _SAID[reply.decision or Decision.RESPOND]
        )
        self._present()

    async def _look(self) -> None:
        interrupts = await self._client.interrupts(agent_turn_id=self._turn)
        now = {interrupt.id: interrupt for interrupt in reversed(interrupts)}  # the first asked comes first
        for gone in self._open.keys() - now.keys():
            del self._open[gone]
            if self._answers:
                self._session.out.remark(f"{gone} is closed")
        self._open |= {key: interrupt for key, interrupt in now.items() if key not in self._open}
        self._present()

    def _present(self) -> None:
        """Print what was not printed yet; where it is answered here, one at a time."""
        for interrupt in self._open.values():
            if interrupt.id not in self._shown:
                self._shown.add(interrupt.id)
                self._print(interrupt)
            if self._answers:
                return

    def _print(self, interrupt: Interrupt) -> None:
        view, out = interrupt.view, self._session.out
        if out.as_json:
            out.json_line({"event": "asks", "interrupt": view.model_dump(mode="json")})
            return
        command = f"`turnstile approvals show{same_options(self._session)} {view.interrupt_id}`"
        if not self._answers:
            out.line(f"· waits for a person: {summary_of(view)}  {command}", style="yellow")
            return
        is_question = view.reason is InterruptReason.INPUT_REQUIRED
        asker = f"the tool {escaped(view.tool_name)}" if view.asked_by_tool else view.agent_id
        out.line(f"? {asker} asks:" if is_question else f"? {escaped(view.message)}", style="yellow")
        for line in quoted_text(view.message) if is_question else quoted_value(view.arguments):
            out.line(line)
        for line in quoted_value(view.response_schema) if is_question and view.response_schema else ():
            out.line(line, style="dim")
        ways = {Decision.APPROVE: APPROVE, Decision.REJECT: f"{REJECT} [REASON]", Decision.RESPOND: f"{RESPOND} ANSWER"}
        if is_question:
            ways[Decision.RESPOND] = "type the answer"
        named = [way for decision, way in ways.items() if decision in view.allowed_decisions]
        out.line(f"  {', '.join([*named, command])}", style="dim")
