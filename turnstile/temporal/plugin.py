"""Turnstile as one Temporal plugin: workers created from a client with this plugin run agent turns.

It sets converters, workflows, activities, the content guard and the unsandboxed runner (the sandbox costs half of a
turn's CPU; import rules and replay tests check determinism instead). The database pools open at their first use.
"""

import logging
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from temporalio.client import Client
from temporalio.converter import DataConverter
from temporalio.plugin import SimplePlugin
from temporalio.runtime import (
    LogForwardingConfig,
    LoggingConfig,
    PrometheusConfig,
    Runtime,
    TelemetryConfig,
    TelemetryFilter,
)
from temporalio.worker import (
    PollerBehaviorSimpleMaximum,
    ReplayerConfig,
    UnsandboxedWorkflowRunner,
    Worker,
    WorkerDeploymentConfig,
)

from turnstile.activities.interceptors import ContentGuard
from turnstile.activities.pump.advance import PumpActivities
from turnstile.activities.turn.settle import SettleActivities
from turnstile.activities.turn.steps import StepActivities
from turnstile.runtime.program import GRACE_SECONDS
from turnstile.runtime.release import release
from turnstile.schema.ids import is_exclusive
from turnstile.telemetry.logs import CountedLines
from turnstile.temporal.converters import DATA_CONVERTER, with_codec
from turnstile.workflows import options
from turnstile.workflows.agent_turn import AgentTurn
from turnstile.workflows.message_thread import MessageThread

_POLLERS = 20
_HANDLERS_POLLERS = 4
"""Pollers of the handlers' worker. A process whose event loop is blocked by a handler still receives one task for each
open poll, and the oldest polls are served first. So a task may time out this often before another worker gets it."""


class _TurnstilePlugin(SimplePlugin):
    def configure_replayer(self, config: ReplayerConfig) -> ReplayerConfig:
        """Configure like a worker, but without failure exception types: with them a `Replayer` never returns.

        So a history that does not replay is reported instead of failing the workflow.
        """
        replayer = super().configure_replayer(config)
        replayer["workflow_failure_exception_types"] = []
        return replayer


def turnstile_plugin(
    steps: StepActivities | None = None, settle: SettleActivities | None = None, pump: PumpActivities | None = None
) -> SimplePlugin:
    """The plugin; without activities it serves clients that start and inspect turns, and replays.

    The client's payload codec (`data_converter=with_codec(…)`) is kept, also for the workers of that client.
    """
    return _TurnstilePlugin(
        "turnstile",
        data_converter=_converter,
        workflows=[AgentTurn, MessageThread],
        activities=_activities(steps, settle, pump),
        workflow_runner=UnsandboxedWorkflowRunner(),
        workflow_failure_exception_types=[Exception],
        interceptors=[ContentGuard()],
    )


def _converter(converter: DataConverter | None) -> DataConverter:
    return DATA_CONVERTER if converter is None else with_codec(converter.payload_codec)


def _activities(
    steps: StepActivities | None, settle: SettleActivities | None, pump: PumpActivities | None
) -> list[Callable[..., Any]] | None:
    activities: list[Callable[..., Any]] = []
    if steps is not None:
        activities += [steps.run_step]
    if settle is not None:
        activities += [settle.apply_reports, settle.inject_timeouts, settle.stop_turn]
    if pump is not None:
        activities += [pump.look_at_thread, pump.advance_message]
    return activities or None


def turnstile_runtime(metrics_address: str | None = None) -> Runtime:
    """A runtime whose workers heartbeat to the server, which lets it push cancellations to them.

    The SDK's own log lines come into the process's log, each kind once in a while, counted. With an address
    (`host:port`) it serves the SDK's own metrics for Prometheus there.
    """
    metrics = None if metrics_address is None else PrometheusConfig(bind_address=metrics_address)
    logger = logging.getLogger("temporalio.sdk")
    if not any(isinstance(log_filter, CountedLines) for log_filter in logger.filters):
        logger.addFilter(CountedLines(_sdk_kind))
    logging_config = LoggingConfig(
        filter=TelemetryFilter(core_level="WARN", other_level="ERROR"),
        forwarding=LogForwardingConfig(logger=logger, append_target_to_name=False),
    )
    telemetry = TelemetryConfig(logging=logging_config, metrics=metrics)
    return Runtime(telemetry=telemetry, worker_heartbeat_interval=timedelta(seconds=60))


def _sdk_kind(record: logging.LogRecord) -> str:
    """Of what kind a line of the SDK is: it repeats one for each poll and each call while Temporal is away."""
    line: Any = getattr(record, "temporal_log", None)
    return record.msg if line is None else f"{line.target} {line.message}"


def turn_workers(
    client: Client,
    worker_targets: Sequence[str],
    *,
    max_concurrency: int,
    max_cached_turns: int = 500,
    handlers_target: str | None = None,
    deployment: WorkerDeploymentConfig | None = None,
    activities: Sequence[Callable[..., Any]] = (),
    workflows: Sequence[type] = (),
) -> list[Worker]:
    """One worker per target, on a client that has the plugin with activities; adds `activities` and `workflows`.

    Handlers of listeners run on `handlers_target`; one of them may block the event loop of its process. `deployment`
    names the build of these workers if worker versions are on.
    """
    pollers = {
        target: PollerBehaviorSimpleMaximum(maximum=_HANDLERS_POLLERS if target == handlers_target else _POLLERS)
        for target in worker_targets
    }
    return [
        Worker(
            client,
            task_queue=options.task_queue(target),
            activities=activities,
            workflows=workflows,
            deployment_config=deployment,
            # Without a build id the SDK hashes every loaded module, which blocks the event loop for seconds.
            build_id=None if deployment else f"turnstile-{release()}",
            max_concurrent_activities=max_concurrency,
            # A sleeping turn costs about 75 kB while it is cached, and a replay if it wakes when it is not.
            max_cached_workflows=max_cached_turns,
            workflow_task_poller_behavior=pollers[target],
            activity_task_poller_behavior=pollers[target],
            # After a crash the next wake of a turn waits this long for the dead worker's sticky queue.
            sticky_queue_schedule_to_start_timeout=timedelta(seconds=1),
            max_heartbeat_throttle_interval=timedelta(seconds=2),
            default_heartbeat_throttle_interval=timedelta(seconds=2),
            # An exclusive target is released at once; its next holder waits no longer than this (protocol §8).
            graceful_shutdown_timeout=timedelta(seconds=0 if is_exclusive(target) else GRACE_SECONDS),
        )
        for target in worker_targets
    ]
