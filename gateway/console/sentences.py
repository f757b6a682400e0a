"""What a page says once after a change, by its code: an address can bring no words of its own. Pure."""

from collections.abc import Mapping
from typing import Final

SENTENCES: Final[Mapping[str, str]] = {
    "entered": "You are signed in.",
    "stopped": "The turn will stop.",
    "steered": "It waits for the turn's next step.",
}
