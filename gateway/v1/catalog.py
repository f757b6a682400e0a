"""Every endpoint of `/v1`, by group. The router and the OpenAPI document are made of this."""

from turnstile.gateway.http.endpoints import Endpoint
from turnstile.gateway.v1.budget_handlers import Budgets
from turnstile.gateway.v1.conversation_handlers import Conversations
from turnstile.gateway.v1.event_handlers import Events
from turnstile.gateway.v1.interrupt_handlers import Interrupts
from turnstile.gateway.v1.roster_handlers import Roster
from turnstile.gateway.v1.turn_handlers import LONGEST_WAIT, Turns
from turnstile.schema import api as r
from turnstile.schema.access import Right
from turnstile.schema.amounts import amount
from turnstile.schema.budgets.views import BudgetView
from turnstile.schema.people.interrupt_requests import InterruptView

_WAIT = f"`wait=SECONDS`: respond when the turn is over, or after this time (at most {amount(LONGEST_WAIT)})."
_RESUME = "The id of the last event received: the stream continues after it. EventSource sends it automatically."
_RESUMED = {200: "The stream.", 204: "The stream has been read to its end."}


def endpoints(
    turns: Turns,
    conversations: Conversations,
    events: Events,
    interrupts: Interrupts,
    budgets: Budgets,
    roster: Roster,
) -> list[Endpoint]:
    """All of them."""
    talk = [*_turns(turns, events), *_conversations(conversations, events)]
    return [*talk, *_interrupts(interrupts), *_budgets(budgets), *_roster(roster)]


def _turns(turns: Turns, events: Events) -> list[Endpoint]:
    return [
        Endpoint(
            name="create_turn",
            method="POST",
            path="/v1/turns",
            right=Right.ASK,
            summary="Enqueue a turn. The same Idempotency-Key with the same body returns the same turn.",
            handler=turns.create,
            body=r.TurnCreate,
            answer=r.Turn,
            statuses={201: "The turn is over.", 202: "The turn is queued or running."},
            request_headers={
                "Idempotency-Key": "The caller's own name for the request: 1 to 256 ASCII characters.",
                "Prefer": _WAIT,
            },
        ),
        Endpoint(
            name="list_turns",
            method="GET",
            path="/v1/turns",
            right=Right.READ,
            summary="Turns, newest first.",
            handler=turns.list,
            query=r.TurnsQuery,
            answer=r.TurnPage,
        ),
        Endpoint(
            name="get_turn",
            method="GET",
            path="/v1/turns/{turn_id}",
            right=Right.READ,
            summary="A turn with its output.",
            handler=turns.get,
            answer=r.Turn,
            request_headers={"Prefer": _WAIT},
        ),
        Endpoint(
            name="stop_turn",
            method="POST",
            path="/v1/turns/{turn_id}/stop",
            right=Right.ASK,
            summary="Stop a turn and the turns below it that it waits for.",
            handler=turns.stop,
            body=r.TurnStop,
            answer=r.StopAnswer,
            statuses={202: "The turn will end."},
        ),
        Endpoint(
            name="steer_turn",
            method="POST",
            path="/v1/turns/{turn_id}/steer",
            right=Right.ASK,
            summary="Steer a running turn. The same Idempotency-Key with the same body returns the same steer.",
            handler=turns.steer,
            body=r.TurnSteer,
            answer=r.SteerAnswer,
            statuses={202: "The turn reads the steer in its next step."},
            request_headers={"Idempotency-Key": "The caller's own name for the request: 1 to 256 ASCII characters."},
        ),
        Endpoint(
            name="rerun_turn",
            method="POST",
            path="/v1/turns/{turn_id}/rerun",
            right=Right.ASK,
            summary="Rerun a finished turn from one of its steps: a new turn runs with copies of its boxes.",
            handler=turns.rerun,
            body=r.TurnRerun,
            answer=r.Turn,
            statuses={201: "The new turn is over.", 202: "The new turn is queued or running."},
            request_headers={
                "Idempotency-Key": "The caller's own name for the request: 1 to 256 ASCII characters.",
                "Prefer": _WAIT,
            },
        ),
        Endpoint(
            name="get_turn_tree",
            method="GET",
            path="/v1/turns/{turn_id}/tree",
            right=Right.READ,
            summary="The tree of turns that the turn belongs to.",
            handler=turns.tree,
            query=r.TreeQuery,
            answer=r.TurnTree,
        ),
        Endpoint(
            name="stream_turn",
            method="GET",
            path="/v1/turns/{turn_id}/events",
            right=Right.READ,
            summary="The events of a turn, from the beginning or after the last event received, to its outcome.",
            handler=events.turn,
            query=r.EventsQuery,
            statuses=_RESUMED,
            request_headers={"Last-Event-ID": _RESUME},
        ),
    ]


def _conversations(conversations: Conversations, events: Events) -> list[Endpoint]:
    return [
        Endpoint(
            name="list_conversations",
            method="GET",
            path="/v1/conversations",
            right=Right.READ,
            summary="Conversations, latest first.",
            handler=conversations.list,
            query=r.ConversationsQuery,
            answer=r.ConversationPage,
        ),
        Endpoint(
            name="get_conversation",
            method="GET",
            path="/v1/conversations/{conversation_id}",
            right=Right.READ,
            summary="A conversation.",
            handler=conversations.get,
            query=r.ChannelQuery,
            answer=r.Conversation,
        ),
        Endpoint(
            name="stream_conversation",
            method="GET",
            path="/v1/conversations/{conversation_id}/events",
            right=Right.READ,
            summary="The events of a conversation's turns, one turn after the other, including future turns.",
            handler=events.conversation,
            query=r.ConversationEventsQuery,
            statuses={200: "The stream."},
            request_headers={"Last-Event-ID": _RESUME},
        ),
    ]


def _interrupts(interrupts: Interrupts) -> list[Endpoint]:
    return [
        Endpoint(
            name="list_interrupts",
            method="GET",
            path="/v1/interrupts",
            right=Right.READ,
            summary="Interrupts: what turns ask people, newest first.",
            handler=interrupts.list,
            query=r.InterruptsQuery,
            answer=r.InterruptPage,
        ),
        Endpoint(
            name="get_interrupt",
            method="GET",
            path="/v1/interrupts/{interrupt_id}",
            right=Right.READ,
            summary="An interrupt, with the call that it is about.",
            handler=interrupts.get,
            answer=InterruptView,
        ),
        Endpoint(
            name="decide_interrupt",
            method="POST",
            path="/v1/interrupts/{interrupt_id}/decision",
            right=Right.DECIDE,
            summary="Decide an interrupt: approve, edit, reject or respond. The first decision counts.",
            handler=interrupts.decide,
            body=r.InterruptDecision,
            answer=r.Decided,
        ),
    ]


def _budgets(budgets: Budgets) -> list[Endpoint]:
    return [
        Endpoint(
            name="list_budgets",
            method="GET",
            path="/v1/budgets",
            right=Right.READ,
            summary="Budgets of turns and of the project, with what is spent, newest first.",
            handler=budgets.list,
            query=r.BudgetsQuery,
            answer=r.BudgetPage,
        ),
        Endpoint(
            name="get_budget",
            method="GET",
            path="/v1/budgets/{budget_id}",
            right=Right.READ,
            summary="A budget: a turn's id, or the project's: `day`, `month`, `2026-11-23` or `2026-11`.",
            handler=budgets.get,
            answer=BudgetView,
        ),
        Endpoint(
            name="raise_budget",
            method="POST",
            path="/v1/budgets/{budget_id}/raise",
            right=Right.OPERATE,
            summary="Raise a budget, or take back what is unused with a negative amount; once per Idempotency-Key.",
            handler=budgets.raise_budget,
            body=r.BudgetRaise,
            answer=BudgetView,
            request_headers={"Idempotency-Key": "The caller's own name for the request: 1 to 256 ASCII characters."},
        ),
        Endpoint(
            name="limit_project",
            method="POST",
            path="/v1/budgets/{period}/limit",
            right=Right.OPERATE,
            summary="Limit what the project may spend per `day` or `month` from now on.",
            handler=budgets.limit,
            body=r.BudgetLimitation,
            answer=BudgetView,
        ),
    ]


def _roster(roster: Roster) -> list[Endpoint]:
    return [
        Endpoint(
            name="list_agents",
            method="GET",
            path="/v1/agents",
            right=Right.READ,
            summary="The project's agents by id.",
            handler=roster.agents,
            query=r.PageQuery,
            answer=r.AgentPage,
        ),
        Endpoint(
            name="list_profiles",
            method="GET",
            path="/v1/profiles",
            right=Right.READ,
            summary="The project's profiles by name.",
            handler=roster.profiles,
            query=r.PageQuery,
            answer=r.ProfilePage,
        ),
        Endpoint(
            name="list_tools",
            method="GET",
            path="/v1/tools",
            right=Right.READ,
            summary="The project's tools by name.",
            handler=roster.tools,
            query=r.PageQuery,
            answer=r.ToolPage,
        ),
        Endpoint(
            name="get_usage",
            method="GET",
            path="/v1/usage",
            right=Right.READ,
            summary="What the project's models used, by agent, model or day.",
            handler=roster.usage,
            query=r.UsageQuery,
            answer=r.Usage,
        ),
    ]
