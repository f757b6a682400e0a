"""Publishes messages after a commit; if one is lost, the safety net publishes it again or polls for its rows."""

import logging

from turnstile.runtime.ports import Publisher
from turnstile.schema.errors import ServerUnavailable
from turnstile.schema.wire.events import Message

log = logging.getLogger(__name__)
SENDER = "turnstile.bridge"


async def publish_best_effort(publisher: Publisher, *messages: Message) -> bool:
    """Publish, and log errors; False if a required message was not acknowledged."""
    try:
        await publisher.publish(messages)
    except ServerUnavailable as error:
        log.warning("not published: %s", error)
        return False
    return True
