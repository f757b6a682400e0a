"""Replaces the errors that leave an activity: only the type goes on, since a message may hold content (protocol §7.9).

A `TurnstileError` keeps its code. The engine retries every error; a step that cannot succeed is ended by the ledger's
count of attempts, not by an exception.
"""

import asyncio
import logging
import traceback
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory, CancelledError
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from turnstile.activities.cancellation import is_given_up
from turnstile.schema.errors import TurnstileError

log = logging.getLogger(__name__)


class ContentGuard(Interceptor):
    """Keeps the content of errors out of Temporal's histories."""

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002 -- the SDK's name
        """Wrap the activity."""
        return _GuardedActivity(super().intercept_activity(next))


class _GuardedActivity(ActivityInboundInterceptor):
    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002 -- the SDK's name
        try:
            return await self.next.execute_activity(input)
        except (asyncio.CancelledError, CancelledError):
            if not is_given_up():
                raise
            info = activity.info()
            late = info.heartbeat_timeout.total_seconds() if info.heartbeat_timeout else 0
            log.warning(
                "%s of %s is no longer this worker's: its heartbeat came later than %g s, or its workflow has ended",
                info.activity_type,
                info.workflow_id,
                late,
            )
            # The engine ignores this answer. Without BENIGN the SDK would log it as a failure, with its traceback.
            raise ApplicationError("given up", type="GivenUp", category=ApplicationErrorCategory.BENIGN) from None
        except ApplicationError:
            raise  # holds no content, and says when to try again
        except TurnstileError as error:
            log.warning("%s: %s (%s)", activity.info().activity_type, error.code, type(error).__name__)
            raise ApplicationError(error.code, type=type(error).__name__) from None
        except Exception as error:  # noqa: BLE001 -- no error may reach the engine's history as it is
            # Log the frames, not the message, which may quote a card.
            frames = "".join(traceback.format_tb(error.__traceback__))
            log.error("%s failed: %s\n%s", activity.info().activity_type, type(error).__name__, frames)
            raise ApplicationError("unexpected error, see the worker's log", type=type(error).__name__) from None
