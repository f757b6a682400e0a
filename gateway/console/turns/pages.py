"""The pages of turns, for the console's list of addresses."""

from turnstile.gateway.console.page import Console, Page
from turnstile.gateway.console.templating import CONSOLE
from turnstile.gateway.console.turns.now import NowQuery, TurnsQuery, now_page, turns_page
from turnstile.gateway.console.turns.tree import TreeQuery, tree_page
from turnstile.gateway.console.turns.turn_actions import RerunForm, SteerForm, StopForm, rerun, steer, stop
from turnstile.gateway.console.turns.turn_page import TurnQuery, card_page, turn_page
from turnstile.schema.access import Right

_TURN = f"{CONSOLE}/turns/{{turn_id}}"


def pages(_: Console) -> tuple[Page, ...]:
    """Reads, and what can be done with a turn."""
    return (
        Page(name="now", path=CONSOLE, handler=now_page, query=NowQuery),
        Page(name="turns", path=f"{CONSOLE}/turns", handler=turns_page, query=TurnsQuery),
        Page(name="turn", path=_TURN, handler=turn_page, query=TurnQuery),
        Page(name="turn_card", path=f"{_TURN}/cards/{{card_id}}", handler=card_page),
        Page(name="tree", path=f"{_TURN}/tree", handler=tree_page, query=TreeQuery),
        Page(name="stop_turn", path=f"{_TURN}/stop", handler=stop, method="POST", right=Right.ASK, form=StopForm),
        Page(name="steer_turn", path=f"{_TURN}/steer", handler=steer, method="POST", right=Right.ASK, form=SteerForm),
        Page(name="rerun_turn", path=f"{_TURN}/rerun", handler=rerun, method="POST", right=Right.ASK, form=RerunForm),
    )
