"""What a page says once after a change, by its code: an address can bring no words of its own. Pure."""

from collections.abc import Mapping
from typing import Final

SENTENCES: Final[Mapping[str, str]] = {
    "entered": "You are signed in.",
    "stopped": "The turn is being stopped.",
    "again": "This turn is a rerun of the other one.",
    "steered": "The turn reads your message in its next step.",
    "queued": "Your message is queued: it becomes the next turn.",
    "approved": "Approved: the call is sent to its tool.",
    "edited": "Approved with your changes: the call is sent to its tool.",
    "rejected": "Rejected: the model reads the rejection.",
    "answered": "Answered: the model reads your answer.",
    "tool_changed": "The tool has changed in the meantime, so the call was not sent. The model reads the error.",
    "paused": "The agent is paused. No further turn starts; the others stay queued.",
    "resumed": "The agent is active again.",
    "retired": "The agent is retired. It accepts no further requests; queued turns still run.",
    "reported": "The call is answered. Its turn continues with your answer.",
    "raised": "The budget has been changed.",
    "limited": "The limit applies from now on.",
    "unlimited": "The limit has been removed.",
}
