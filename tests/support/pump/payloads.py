"""Finds Turnstile's payloads in a message of Temporal."""

from collections.abc import Iterator

from google.protobuf.message import Message
from temporalio.api.common.v1 import Payload, SearchAttributes


def payloads_in(message: Message) -> Iterator[Payload]:
    """Every payload of a message but those of search attributes."""
    if isinstance(message, Payload):
        yield message
    if isinstance(message, Payload | SearchAttributes):
        return
    for _, value in message.ListFields():
        for each in value.values() if hasattr(value, "values") else value if hasattr(value, "extend") else [value]:
            if isinstance(each, Message):
                yield from payloads_in(each)
