"""Worker versions: which build of the workers runs turns, by Temporal's Worker Deployment Versioning.

Off unless `[worker].deployment_name` and `build_id` are set. A turn moves to the current build with its next workflow
task (AUTO_UPGRADE). A turn may sleep for days; if it were pinned to its first build, it could not wake without that
build's workers. As with a restart of all workers, workflows must change behind `workflow.patched` (CONTRIBUTING.md);
replays of recorded histories check that.
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
_POLL_SECONDS = 0.2


class Build(Strict):
    """A build of which a worker has polled at some time."""

    build_id: str
    current: bool
    status: str
    """Temporal's term: `current`, `draining` (turns have not moved on yet), `drained`, `inactive` (never current)."""


def deployment_of(settings: WorkerSettings) -> WorkerDeploymentConfig | None:
    """The deployment and build with which workers register; None if worker versions are off."""
    if not settings.deployment_name:
        return None
    return WorkerDeploymentConfig(
        version=WorkerDeploymentVersion(settings.deployment_name, settings.build_id),
        use_worker_versioning=True,
        default_versioning_behavior=VersioningBehavior.AUTO_UPGRADE,
    )


def deployment_name(settings: WorkerSettings) -> str:
    """The name of the workers' deployment; raises `ConfigError` if worker versions are off."""
    if not settings.deployment_name:
        raise ConfigError("worker versions are off: set [worker].deployment_name and [worker].build_id")
    return settings.deployment_name


async def list_builds(client: Client, deployment: str) -> list[Build]:
    """Every build that has polled, the newest first; empty if there is no such deployment yet.

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
    summaries = sorted(info.version_summaries, key=lambda summary: summary.create_time.ToNanoseconds(), reverse=True)
    return [
        Build(
            build_id=summary.deployment_version.build_id,
            current=summary.deployment_version.build_id == current,
            status=WorkerDeploymentVersionStatus.Name(summary.status).removeprefix(prefix).lower(),
        )
        for summary in summaries
    ]


async def set_current(
    client: Client, deployment: str, build_id: str, *, ignore_missing: bool = False, patience_seconds: float = 0.0
) -> None:
    """Make this build current: its workers run all new turns and all turns that wake. An empty build means unversioned.

    Raises `ServerUnavailable` if Temporal does not answer. Retries for `patience_seconds`, then raises `Refused`:
    `unknown_build` if no worker of the build has polled, or `missing_targets` if its workers do not poll for a worker
    target that the current build serves (not with `ignore_missing`).
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
        await asyncio.sleep(_POLL_SECONDS)


async def _set_current(client: Client, request: SetWorkerDeploymentCurrentVersionRequest) -> Refused | None:
    """Set the current version; returns the refusal if Temporal refuses, else None."""
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
