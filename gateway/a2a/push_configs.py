"""Whom to tell of a task: not done yet."""

from a2a.types import SendMessageConfiguration
from a2a.utils.errors import PushNotificationNotSupportedError

from turnstile.gateway.a2a.asked import Asked
from turnstile.gateway.a2a.objects import PushConfig
from turnstile.ledger.access.tasks import TaskRow


async def checked_receiver(asked: Asked, wanted: SendMessageConfiguration) -> PushConfig | None:
    if wanted.HasField("task_push_notification_config"):
        raise PushNotificationNotSupportedError
    return None


async def add_receiver(asked: Asked, row: TaskRow, receiver: PushConfig) -> None:
    raise PushNotificationNotSupportedError


async def create(asked: Asked, request: object) -> None:
    raise PushNotificationNotSupportedError


get = list_all = delete = create
