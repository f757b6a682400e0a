"""Checks whether turns can run here: versions, servers, models and their keys. Calls no provider and changes nothing.

Each check returns lines that say what was found and, if something is wrong, how to fix it. A server has `SECONDS` to
answer.
"""

import asyncio
import stat
import sys
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from importlib import metadata
from pathlib import Path
from typing import Protocol, get_args
from urllib.error import HTTPError
from urllib.request import urlopen

from temporalio.api.workflowservice.v1 import GetSystemInfoRequest

from turnstile.activities.models.litellm_sdk import TESTED_VERSION
from turnstile.bridge.engine import are_known, ensure_readable
from turnstile.doctor.checks import SECONDS, Check, looked
from turnstile.doctor.serving import check_serving
from turnstile.doctor.storage import check_disks
from turnstile.embedded import Endpoints, ServerName, find_data, read_endpoints
from turnstile.embedded.server import log_path
from turnstile.ledger.address import read_address
from turnstile.ledger.migrate import pending, probe_storage
from turnstile.ledger.operations.monitor import measure_inbox
from turnstile.ledger.operations.recovery import Era, find_era
from turnstile.ledger.pool import Pool, ServerTooOld
from turnstile.ledger.pump.thread_views import Unserved, list_served, list_unserved
from turnstile.ledger.schedules import list_stuck_schedules
from turnstile.ledger.turns.usage import list_profile_models
from turnstile.processes import addresses
from turnstile.processes.listener_files import load_registry
from turnstile.processes.models import Models
from turnstile.processes.pump import served_targets
from turnstile.runtime.object_store import ObjectStore
from turnstile.runtime.release import release
from turnstile.schema.errors import ConfigError, ServerUnavailable, TurnstileError
from turnstile.schema.pump.listeners import BadListener
from turnstile.settings import Settings
from turnstile.temporal.connect import connect_engine
from turnstile.temporal.versions import list_builds
from turnstile.transport.address import parse_address
from turnstile.transport.connection import connect

COMPROMISED = {"litellm": frozenset({"1.82.7", "1.82.8", "1.107.0"})}
"""Released versions that sent API keys to an attacker; pip does not warn of them."""
_LATE_SECONDS = 60.0
_STUCK_LINES = 20
_STUCK = {
    "late": "its time has come, and no bridge fires it",
    "owner_revoked": "it is paused: the token that put it is revoked or has expired; put it with another one",
    "schedule_invalid": "it is paused: its settings cannot be read; put it again",
    "unknown_agent": "the project has no such agent",
    "agent_inactive": "its agent is not active",
    "agent_paused": "its agent is paused: what it fires waits",
    "unknown_profile": "the project has no such profile",
    "no_instances": "its profile has no instances",
}
"""Why a schedule cannot run."""
_SHOWN_PACKAGES = ("temporalio", "nats-py", "pydantic")


class _Shown(Protocol):
    @property
    def shown(self) -> str: ...


@dataclass(frozen=True, slots=True)
class _Doctor:
    settings: Settings
    data: Path | None
    models: Sequence[str]

    async def servers(self) -> list[Check]:
        try:
            endpoints = addresses.resolve_endpoints(self.settings, self.data)
        except ConfigError as error:
            return [Check(name="servers", status="warn", says=str(error), hint="`turnstile up` starts all of them")]
        looks = [
            looked(
                "PostgreSQL",
                lambda: _postgres(endpoints.database_url),
                self._hint("postgres", endpoints),
                at=_shown(read_address, endpoints.database_url),
            ),
            looked(
                "NATS",
                lambda: _nats(endpoints.nats_url),
                self._hint("nats", endpoints),
                at=_shown(parse_address, endpoints.nats_url),
            ),
            looked(
                "Temporal",
                lambda: _temporal(self.settings, endpoints),
                self._hint("temporal", endpoints),
                at=endpoints.temporal_address,
            ),
        ]
        if self.settings.worker.deployment_name:
            looks.append(looked("worker version", lambda: _version(self.settings, endpoints)))
        if url := self._gateway():
            looks.append(looked("gateway", lambda: _gateway(url), at=url))
        if store := addresses.with_store(self.settings, self.data).artifacts.store:
            looks.append(looked("files", lambda: _files(store), "check [artifacts].store, and who may write there"))
        looks.append(check_serving(self.settings, endpoints, self._log("nats", endpoints)))
        checks = [check for group in await asyncio.gather(*looks) for check in group]
        return [*checks, *check_disks(self._homes(endpoints))]

    def _homes(self, endpoints: Endpoints) -> list[Path]:
        """The data directories of those servers of a `turnstile up` here that are in use."""
        logs = {name: self._log(name, endpoints) for name in get_args(ServerName)}
        return [log.parent.parent / name for name, log in logs.items() if log is not None]

    def _gateway(self) -> str | None:
        """Where the gateway of the settings, or of a `turnstile up` here, serves; None if there is none."""
        data = find_data(self.data)
        endpoints = read_endpoints(data) if data is not None else None
        return self.settings.gateway.url or (endpoints.gateway_url if endpoints is not None else None)

    def _log(self, name: ServerName, endpoints: Endpoints) -> Path | None:
        """The log of this server of a `turnstile up` here, if that is the one in use."""
        data = find_data(self.data)
        running = read_endpoints(data) if data is not None else None
        if data is None or running is None or _address(name, running) != _address(name, endpoints):
            return None
        return log_path(data, name)

    def _hint(self, name: ServerName, endpoints: Endpoints) -> str:
        """What to do about a server that does not answer."""
        if (log := self._log(name, endpoints)) is None:
            return "check that it runs and that its address is right"
        return f"it is the one of `turnstile up`, which starts it again if it ended; its log is {log}"

    async def listeners(self) -> list[Check]:
        """Whether a worker serves the listeners that `[pump]` names and those that messages wait for."""
        target, names = self.settings.pump.worker_target, self.settings.pump.listeners
        try:
            expected = sorted(load_registry(names).listeners) if names else []
        except BadListener as error:
            return [Check(name="listeners", status="fail", says=str(error), hint="no worker starts with them")]
        try:
            async with self._ledger() as pool:
                served = await pool.run(lambda conn: list_served(conn, target))
                waited = await pool.run(lambda conn: list_unserved(conn, [target], older_seconds=0, row_limit=20))
        except ConfigError:
            return []
        except Exception as error:  # noqa: BLE001 -- the PostgreSQL check reports the cause
            says = f"the database could not be queried for them ({type(error).__name__})"
            return [Check(name="listeners", status="warn", says=says)] if names else []
        return _served(target, expected, served, waited)

    async def claims(self) -> list[Check]:
        """A line if claims of inbox rows failed and are tried again: where Temporal takes nothing, all are."""
        try:
            async with self._ledger() as pool:
                reasons = (await pool.run(measure_inbox)).tried_again
        except Exception:  # noqa: BLE001 -- the PostgreSQL check reports the cause
            return []
        if not reasons:
            return []
        says = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
        hint = "`turnstile inbox list` shows the rows; `turnstile docs operations` says what each reason means"
        return [Check(name="inbox", status="warn", says=f"rows are tried again: {says}", hint=hint)]

    async def schedules(self) -> list[Check]:
        """A line for each schedule that cannot run."""
        try:
            async with self._ledger() as pool:
                stuck = await pool.run(
                    lambda conn: list_stuck_schedules(conn, late_seconds=_LATE_SECONDS, row_limit=_STUCK_LINES)
                )
        except Exception:  # noqa: BLE001 -- the PostgreSQL check reports the cause
            return []
        hint = "`turnstile schedule show` has its settings and what it was refused with"
        named = [(f"schedule {row.project_id}/{row.schedule_id}", _STUCK[row.reason]) for row in stuck]
        return [Check(name=name, status="warn", says=says, hint=hint) for name, says in named]

    async def named_models(self) -> tuple[list[str], list[Check]]:
        """The models of all profiles and those given on the command line; a line if profiles cannot be read."""
        try:
            async with self._ledger() as pool:
                rows = await pool.run(list_profile_models)
        except ConfigError:
            return list(dict.fromkeys(self.models)), []
        except Exception:  # noqa: BLE001 -- the PostgreSQL check reports the cause
            says = "profiles could not be read, so their models are not checked"
            check = Check(name="models", status="warn", says=says, hint="see the line of PostgreSQL")
            return list(dict.fromkeys(self.models)), [check]
        return list(dict.fromkeys((*self.models, *(row.model for row in rows)))), []

    @asynccontextmanager
    async def _ledger(self) -> AsyncGenerator[Pool]:
        """The ledger for at most `SECONDS`; raises `ConfigError` if its address is not known."""
        url = addresses.database_url(self.settings, self.data)
        pool = Pool(url, size=1, name="turnstile doctor", patience=SECONDS)
        try:
            async with asyncio.timeout(SECONDS):
                yield pool
        finally:
            await pool.close()


async def examine(settings: Settings, data: Path | None, models: Sequence[str]) -> list[Check]:
    """All checks: versions, settings, servers, key files, and the models of profiles and of `models`."""
    doctor = _Doctor(settings, data, models)
    servers, listeners, claims, schedules, (named, problems) = await asyncio.gather(
        doctor.servers(), doctor.listeners(), doctor.claims(), doctor.schedules(), doctor.named_models()
    )
    model_checks = await check_models(settings, named) if named or not problems else []
    checks = [*versions(), *servers, *listeners, *claims, *schedules, *problems, *key_files(settings), *model_checks]
    return [*checks, verdict(checks)]


def verdict(checks: Sequence[Check]) -> Check:
    """The last line: whether turns can run here, and which checks failed."""
    if failed := [check.name for check in checks if check.status == "fail"]:
        return Check(name="turns", status="fail", says=f"cannot all run here; fix first: {', '.join(failed)}")
    if any(check.name == "servers" for check in checks):
        return Check(name="turns", status="fail", says="cannot run yet: no servers are known")
    return Check(name="turns", status="ok", says="can run here")


def versions() -> list[Check]:
    """The versions of Python and of the main libraries."""
    python = ".".join(str(part) for part in sys.version_info[:3])
    checks = [Check(name="Python", status="ok" if sys.version_info >= (3, 11) else "fail", says=python)]
    packages = ", ".join(f"{name} {metadata.version(name)}" for name in _SHOWN_PACKAGES)
    checks.append(Check(name="packages", status="ok", says=f"turnstile {release()}, {packages}"))
    try:
        litellm = metadata.version("litellm")
    except metadata.PackageNotFoundError:
        hint = "install requirements.lock; scripted models work without it"
        return [*checks, Check(name="litellm", status="fail", says="not installed", hint=hint)]
    if litellm in COMPROMISED["litellm"]:
        hint = "uninstall it, replace every key that this machine holds, install requirements.lock"
        return [*checks, Check(name="litellm", status="fail", says=f"{litellm} steals keys", hint=hint)]
    if litellm != TESTED_VERSION:
        says = f"{litellm}; the tested version is {TESTED_VERSION}"
        return [*checks, Check(name="litellm", status="warn", says=says, hint="install requirements.lock")]
    return [*checks, Check(name="litellm", status="ok", says=litellm)]


def key_files(settings: Settings) -> list[Check]:
    """Whether each key file can be read, and by its owner only."""
    checks: list[Check] = []
    named = dict(settings.model.api_key_files)
    if settings.temporal.codec_keys_file:
        named["[temporal].codec_keys_file"] = Path(settings.temporal.codec_keys_file)
    for entry, file in named.items():
        name = f"key of {entry}"
        try:
            mode = file.stat().st_mode
        except OSError as error:
            checks.append(
                Check(name=name, status="fail", says=f"{file}: {error.strerror}", hint="[model.api_key_files]")
            )
            continue
        others = bool(mode & (stat.S_IRGRP | stat.S_IROTH))
        says = f"{file}, readable by others" if others else str(file)
        checks.append(
            Check(name=name, status="warn" if others else "ok", says=says, hint=f"chmod 600 {file}" if others else "")
        )
    return checks


async def check_models(settings: Settings, models: Sequence[str]) -> list[Check]:
    """Whether each model has a known provider and a key for it; does not call the provider."""
    if not models:
        return [Check(name="models", status="ok", says="no profile names one yet")]
    router = Models(settings).router
    checks: list[Check] = []
    try:
        for model in models:
            try:
                await router.check(model)
            except TurnstileError as error:
                hint = (
                    "doctor looks in its own environment; `turnstile docs models` lists providers and their variables"
                )
                checks.append(Check(name=model, status="fail", says=f"{error} ({error.code})", hint=hint))
            else:
                checks.append(Check(name=model, status="ok", says="can be asked"))
    finally:
        await router.close()
    return checks


def _served(
    target: str, listeners: Collection[str], served: Mapping[str, int], waited: Sequence[Unserved]
) -> list[Check]:
    """One line for the served or missing listeners, and one for each unserved listener that messages wait for."""
    hint = "start `turnstile worker` with these [pump].listeners"
    checks = [Check(name="listeners", status="fail", says=unserved.sentence(), hint=hint) for unserved in waited]
    missing = sorted(set(listeners) - set(served))
    if missing:
        says = f"no worker of {target!r} has {', '.join(missing)}"
        checks.append(Check(name="listeners", status="warn", says=says, hint=hint))
    elif served:
        most = max(served.values())
        names = ", ".join(name if n == most else f"{name} (by {n} of {most} workers)" for name, n in served.items())
        checks.append(Check(name="listeners", status="ok", says=f"{target!r} has {names}"))
    return checks


def _address(name: ServerName, endpoints: Endpoints) -> str:
    match name:
        case "postgres":
            return endpoints.database_url
        case "nats":
            return endpoints.nats_url
        case "temporal":
            return endpoints.temporal_address


def _shown(read: Callable[[str], _Shown], url: str) -> str:
    """The address without its password; empty if it cannot be read, which the check itself reports."""
    try:
        return read(url).shown
    except ConfigError:
        return ""


async def _postgres(url: str) -> list[Check]:
    pool = Pool(url, size=1, name="turnstile doctor", patience=SECONDS)
    try:
        await pool.open(writable=True)
        missing = await pending(pool)
        era = None if missing else await pool.run(find_era)
        await probe_storage(pool)
    except ServerTooOld as error:  # it runs, and its log says nothing
        return [Check(name="PostgreSQL", status="fail", says=error.reason, hint=error.cure)]
    finally:
        await pool.close()
    if missing:
        hint = "run `turnstile migrate`"
        return [
            Check(
                name="PostgreSQL",
                status="fail",
                says=f"{pool.server} lacks {len(missing)} files of its schema",
                hint=hint,
            )
        ]
    return [Check(name="PostgreSQL", status="ok", says=f"{pool.server}, version {pool.version}"), *_era(era)]


def _era(era: Era | None) -> list[Check]:
    """One line if the ledger is not in its first era: its server was replaced, or a backup was restored."""
    if era is None or era.era == 0:
        return []
    says = f"era {era.era} since {era.begun_at:%Y-%m-%d %H:%M:%S} UTC; {era.carried_count} turns were live then"
    hint = "messages about turns that the restored ledger lacks are recorded as rejections with the code beyond_ledger"
    return [Check(name="ledger", status="ok", says=says, hint=hint)]


async def _nats(url: str) -> list[Check]:
    conn = await connect(url, name="turnstile doctor", on_wait=lambda _: None)
    try:
        await conn.send("$JS.API.INFO", b"")
        await conn.verify()
        account = await conn.js.account_info()
    except ConfigError:  # the NATS user of a client lacks this permission and does not need it
        return [Check(name="NATS", status="ok", says=f"{conn.shown}; this user may not ask about JetStream")]
    finally:
        await conn.close()
    return [Check(name="NATS", status="ok", says=f"{conn.shown}, JetStream with {account.streams} streams")]


async def _files(store: str) -> list[Check]:
    await ObjectStore.at(store).check()
    return [Check(name="files", status="ok", says=f"{store} can be written and read")]


async def _gateway(url: str) -> list[Check]:
    """Whether HTTP is served; turns can run without, so it is no failure."""

    def asked() -> str:
        try:
            with urlopen(f"{url.rstrip('/')}/health", timeout=SECONDS / 2) as answer:  # noqa: S310 -- the operator's own address
                return "" if answer.status == HTTPStatus.OK else f"answers {answer.status}"
        except HTTPError as error:
            return f"answers {error.code}"
        except (OSError, ValueError) as error:
            return f"does not answer ({type(error).__name__})"

    if not (wrong := await asyncio.to_thread(asked)):
        return [Check(name="gateway", status="ok", says=f"serves HTTP at {url}")]
    hint = "check `turnstile gateway`, any proxy before it, and `[gateway].allowed_hosts`"
    return [Check(name="gateway", status="warn", says=f"{url}/health {wrong}", hint=hint)]


async def _temporal(settings: Settings, endpoints: Endpoints) -> list[Check]:
    address, namespace = endpoints.temporal_address, endpoints.temporal_namespace
    try:
        client = await connect_engine(settings.temporal, endpoints)
    except RuntimeError as error:  # the SDK raises it if the server does not answer
        raise ServerUnavailable(f"Temporal at {address} does not answer: {str(error)[:200]}") from None
    info = await client.workflow_service.get_system_info(GetSystemInfoRequest())
    await client.count_workflows("WorkflowId = 'none'")
    if await are_known(client):
        await ensure_readable(client, served_targets(settings))
    encrypted = f", payloads encrypted by {settings.temporal.codec}" if settings.temporal.codec else ""
    says = f"{address}, namespace {namespace}, version {info.server_version}{encrypted}"
    return [Check(name="Temporal", status="ok", says=says)]


async def _version(settings: Settings, endpoints: Endpoints) -> list[Check]:
    """Whether the build in these settings is the current one, which runs all turns."""
    worker = settings.worker
    builds = await list_builds(await connect_engine(settings.temporal, endpoints), worker.deployment_name)
    current = next((build.build_id for build in builds if build.current), None)
    says = "no build is current" if current is None else f"{worker.deployment_name}.{current} runs turns"
    if current == worker.build_id:
        return [Check(name="worker version", status="ok", says=says)]
    hint = f"workers of {worker.build_id} wait until `turnstile worker-version set-current {worker.build_id}`"
    return [Check(name="worker version", status="warn", says=says, hint=hint)]
