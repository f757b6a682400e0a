"""What each type of inbox row is for (protocol §4, §6, §7): the one table that Python and SQL read.

`purpose_of` says what a type is for. Code that treats rows differently matches on the purpose, and the type checker
names each place where a new one is missing. SQL reads the same table: `{turn_types}` in a query file of the ledger
stands for the types of that name in `TYPE_LISTS`. The claim rejects rows of any other type and logs whose they are.
"""

from enum import StrEnum
from typing import Final, assert_never

from turnstile.schema.states import MessageType

TYPED_ANSWERS: Final = 2
"""The level of the protocol from which on a turn may have an `output_schema`, and the settings of sampling."""
CODE_AGENTS: Final = 3
"""The level from which on a profile may have `run_by`."""
CLIENT_TOOLS: Final = 4
"""The level from which on a turn may have `client_tools`."""
FILES: Final = 5
"""The level from which on a card may name files."""
WAKES: Final = 6
"""The level from which on a profile may offer `wake_me`."""
PROTOCOL_LEVEL: Final = WAKES
"""What a process that signs on in `state.workers` says that it speaks. It rises with each new type of inbox row, which
is sent once `state.protocol_level` has its level: to a bridge that does not know it, its rows are an `error`. It rises
with each setting of a turn that no worker may overlook, too: an enqueue with one is `upgrade_under_way` until all that
have signed on have its level."""


class Purpose(StrEnum):
    """What claims a row, whom the claim wakes, what settles the row, and what it means to a turn that runs."""

    MODEL_TURN = "model_turn"
    """The row of a turn that asks a model. Due once its agent is leased to it; the claim starts the turn's workflow,
    and the turn's end settles the row."""
    TOOL_TURN = "tool_turn"
    """As `MODEL_TURN`, for a turn whose only step calls one tool and asks no model."""
    REPORT = "report"
    """The answer to a call. The claim rings the turn if it sleeps and defers the row while the turn runs;
    `apply_reports` settles it, or the claim, where the call is settled already."""
    STOP = "stop"
    """Asks for the end of a turn. The claim rings the turn, which ends whatever it does; its end settles the row."""
    RECORD = "record"
    """What a person said to a turn. The row is never due, so no claim takes it: the statement that takes what was said
    settles it, or the turn's end."""


def purpose_of(message_type: MessageType) -> Purpose:
    """What rows of the type are for."""
    match message_type:
        case MessageType.TURN:
            return Purpose.MODEL_TURN
        case MessageType.UI_ACTION:
            return Purpose.TOOL_TURN
        case MessageType.TOOL_RESULT | MessageType.TIMEOUT:
            return Purpose.REPORT
        case MessageType.STOP:
            return Purpose.STOP
        case MessageType.STEER | MessageType.DECISION:
            return Purpose.RECORD
        case _:
            assert_never(message_type)


def asks_model(message_type: MessageType) -> bool:
    """Whether the turn that this row began asks a model; raises `ValueError` for a row that begins no turn."""
    match purpose_of(message_type):
        case Purpose.MODEL_TURN:
            return True
        case Purpose.TOOL_TURN:
            return False
        case Purpose.REPORT | Purpose.STOP | Purpose.RECORD:
            raise ValueError(f"a row of type {message_type} begins no turn")


def _types(*purposes: Purpose) -> tuple[MessageType, ...]:
    return tuple(t for t in MessageType if purpose_of(t) in purposes)


TYPE_LISTS: Final = {
    "message_types": tuple(MessageType),
    "turn_types": _types(Purpose.MODEL_TURN, Purpose.TOOL_TURN),
    "report_types": _types(Purpose.REPORT),
    "signal_types": _types(Purpose.REPORT, Purpose.STOP),
    "record_types": _types(Purpose.RECORD),
}
"""The lists of types that SQL names. Partial indexes of the tables repeat `turn_types`."""
