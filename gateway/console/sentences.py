"""What a page says once after a change, by its code: an address can bring no words of its own. Pure."""

from collections.abc import Mapping
from typing import Final

SENTENCES: Final[Mapping[str, str]] = {
    "entered": "You are signed in.",
    "stopped": "The turn will stop.",
    "again": "This turn runs the other one again.",
    "steered": "It waits for the turn's next step.",
    "queued": "It is asked when the turn that runs is over.",
    "approved": "Approved: the call is sent.",
    "edited": "Approved as you edited it: the call is sent.",
    "rejected": "Rejected: the model is told.",
    "answered": "Answered: the model is told.",
    "tool_changed": "The tool was changed since it was asked about, so the call was not sent; the model is told.",
    "paused": "The agent takes no further turn; what waits stays queued.",
    "resumed": "The agent is active again.",
    "retired": "The agent takes no further request; what waits still runs.",
    "reported": "The call is answered; its turn goes on with that.",
    "raised": "The budget is changed.",
    "limited": "The limit holds from now on.",
    "unlimited": "Nothing limits the project there any more.",
}
