"""Worker versions: which build of the workers runs turns, by Temporal's Worker Deployment Versioning.

Off unless `[worker].deployment_name` and `build_id` are set. A turn moves on to the current build with its next
workflow task (AUTO_UPGRADE): it may sleep for days, and one that was pinned to its first build would need that build's
workers all the while, and never wake without them. What that asks of the code is what a restart of all workers asks
anyway: workflows change behind `workflow.patched` (CONTRIBUTING.md), and recorded histories hold them to it.
"""

import asyncio
import time
from datetime import timedelta

from temporalio.api.enums.v1 import WorkerDeploymentVersionStatus
from temporalio.api.workflowservice.v1 import DescribeWorkerDeploymentRequest, SetWorkerDeploymentCurrentVersionRequest
from temporalio.client import Client
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import WorkerDeploymentConfig

from turnstile.schema.base import Strict
from turnstile.schema.errors import ConfigError, Refused, ServerUnavailable
from turnstile.settings import WorkerSettings

_RPC_TIMEOUT = timedelta(seconds=10)
_LOOK_SECONDS = 0.2


class Build(Strict):
    """A build of the workers that has polled at some time."""

    build_id: str
    current: bool
    status: str
    """Temporal's word: `current`, `draining` (turns have not moved on yet), `drained`, `inactive` (never current)."""


def deployment_of(settings: WorkerSettings) -> WorkerDeploymentConfig | None:
    """How workers say which build they are; None where that is off."""
    if not settings.deployment_name:
        return None
    return WorkerDeploymentConfig(
        version=WorkerDeploymentVersion(settings.deployment_name, settings.build_id),
        use_worker_versioning=True,
        default_versioning_behavior=VersioningBehavior.AUTO_UPGRADE,
    )


def deployment_name(settings: WorkerSettings) -> str:
    """What the workers' deployment is called; raises `ConfigError` where worker versions are off."""
    if not settings.deployment_name:
        raise ConfigError("worker versions are off: set [worker].deployment_name and [worker].build_id")
    return settings.deployment_name


async def list_builds(client: Client, deployment: str) -> list[Build]:
    """Every build that has polled, the newest first; none if there is no such deployment yet.

    Raises `ServerUnavailable` if Temporal does not answer.
    """
    request = DescribeWorkerDeploymentRequest(namespace=client.namespace, deployment_name=deployment)
    try:
        answer = await client.workflow_service.describe_worker_deployment(request, timeout=_RPC_TIMEOUT)
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return []
        raise ServerUnavailable(f"Temporal: {error.message}") from error
    info = answer.worker_deployment_info
    current = info.routing_config.current_deployment_version.build_id
    prefix = "WORKER_DEPLOYMENT_VERSION_STATUS_"
    summaries = sorted(info.version_summaries, key=lambda each: each.create_time.ToNanoseconds(), reverse=True)
    return [
        Build(
            build_id=each.deployment_version.build_id,
            current=each.deployment_version.build_id == current,
            status=WorkerDeploymentVersionStatus.Name(each.status).removeprefix(prefix).lower(),
        )
        for each in summaries
    ]


async def set_current(
    client: Client, deployment: str, build_id: str, *, ignore_missing: bool = False, patience_seconds: float = 0.0
) -> None:
    """Let the workers of this build (empty: those without one) run all turns from now on: new ones and those that wake.

    Raises `ServerUnavailable` if Temporal does not answer, and, if it is still so after `patience_seconds`, `Refused`:
    `unknown_build` (none of its workers has polled), or `missing_targets` (they do not poll for a worker target that
    the build before serves; not with `ignore_missing`).
    """
    request = SetWorkerDeploymentCurrentVersionRequest(
        namespace=client.namespace,
        deployment_name=deployment,
        build_id=build_id,
        identity=client.identity,
        ignore_missing_task_queues=ignore_missing,
    )
    deadline = time.monotonic() + patience_seconds
    while (refused := await _set_current(client, request)) is not None:
        if time.monotonic() > deadline:
            raise refused
        await asyncio.sleep(_LOOK_SECONDS)


async def _set_current(client: Client, request: SetWorkerDeploymentCurrentVersionRequest) -> Refused | None:
    """Why it cannot be set yet; None if it is."""
    build = f"{request.deployment_name}.{request.build_id}"
    try:
        await client.workflow_service.set_worker_deployment_current_version(request, timeout=_RPC_TIMEOUT)
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return Refused("unknown_build", f"no worker of {build} has polled yet")
        if error.status is RPCStatusCode.FAILED_PRECONDITION:
            return Refused("missing_targets", f"{build}: {error.message}")
        raise ServerUnavailable(f"Temporal: {error.message}") from error
    return None
