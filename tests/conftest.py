"""Fixtures: one set of real servers per session, and for every test a database cloned from a migrated one."""

import asyncio
import gc
import os
import signal
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from shutil import disk_usage
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from tests.support.cpu import no_collection
from tests.support.databases import Databases
from tests.support.processes.hatchery import GARBAGE, shared_hatchery
from tests.support.processes.shared_stack import SharedStack
from tests.support.processes.stuck import tasks_of
from turnstile.embedded import EmbeddedServers, Endpoints
from turnstile.ledger.migrate import migrate
from turnstile.ledger.pool import Pool, Session

settings.register_profile(
    "default",
    max_examples=15,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.register_profile("thorough", settings.get_profile("default"), max_examples=300, stateful_step_count=60)
settings.load_profile("default")


SERVERS_FILE = "TURNSTILE_TEST_SERVERS"
"""One session of tests after another on the same servers (`lab.conformance`)."""
MEMORY = Path("/dev/shm")
MEMORY_BYTES = 4 << 30
FUZZ_CASES, LONG_FUZZ_CASES = 2_000, 20_000
"""In the usual run, and in `make test-long`."""
HAMMER_SECONDS, LONG_HAMMER_SECONDS = 3.0, 30.0
TOGETHER = ("tests/activities/models/", "tests/e2e/console/browser/")
"""litellm takes five seconds of a core to load, and Chromium with the demo project as long to start."""
USUALLY_AND_LONG = ("usual", pytest.param("long", marks=pytest.mark.long))
"""Each test that takes such a fixture is run in small by `make test`, and in large by `make test-long`."""


# A shell that puts the suite into the background has it ignore Ctrl-C, and every program that a test starts inherits
# that: `up` and `watch` would rightly not end by the SIGINT that a test sends. A handler here is the default there.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Go's servers look for garbage an eighth as often as usual, and take up to a gigabyte each: a fifth of Temporal's CPU.
os.environ.setdefault("GOGC", "800")
os.environ.setdefault("GOMEMLIMIT", "1GiB")


# Collecting makes a million objects that stay until the end: no search for garbage goes through them.
gc.disable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The modules that share a stack come one after another."""
    items.sort(key=lambda item: item.get_closest_marker("shared_stack") is None)


class _Together(LoadFileScheduling):
    """A file to a process, and of the folders in `TOGETHER` all files to one: what they load is loaded once."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return next((folder for folder in TOGETHER if file.startswith(folder)), file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> _Together | None:
    """For `--dist loadfile`."""
    return _Together(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_collection_finish() -> None:
    """Nothing of the tests has run yet: from here on garbage is collected, less often, of what is made from here on."""
    gc.freeze()
    gc.set_threshold(GARBAGE)
    gc.enable()


def pytest_addoption(parser: pytest.Parser) -> None:
    """What the usual run does in short: `--hammer-seconds 60 --fuzz-cases 100000 --turns 200 --outage-seconds 60`."""
    parser.addoption(
        "--hammer-seconds",
        type=float,
        default=HAMMER_SECONDS,
        help="how long the hammers of tests/ledger hammer, that of trees half",
    )
    parser.addoption(
        "--tree-hammer-seconds", type=float, default=600.0, help="how long the long hammer of trees hammers"
    )
    parser.addoption("--fuzz-cases", type=int, default=FUZZ_CASES, help="how many cases the tests marked `fuzz` share")
    parser.addoption(
        "--talk-seeds",
        type=int,
        default=1,
        help="how many conversations tests/e2e/pump/test_agents_talk_crashes.py kills",
    )
    parser.addoption("--turns", type=int, default=42, help="how many turns are live when Temporal's data is deleted")
    parser.addoption(
        "--pictures", help="the directory where tests/e2e/turns/test_web_ui.py renews the pictures of the docs"
    )
    parser.addoption(
        "--install", action="store_true", help="let tests/packaging install the wheel from the package index"
    )
    parser.addoption("--slow-turns", type=int, default=0, help="how many turns meet servers that answer late")
    parser.addoption("--outage-seconds", type=float, default=5.0, help="how long NATS is down under load")


@pytest.fixture(scope="session", autouse=True)
async def no_process_is_left() -> AsyncIterator[None]:
    """The parent process of the commands ends with the session."""
    yield
    await shared_hatchery.close()


@pytest.fixture(scope="session", params=USUALLY_AND_LONG)
def hammer_seconds(request: pytest.FixtureRequest) -> float:
    """What `--hammer-seconds` says; in the long run at least half a minute."""
    seconds = float(str(request.config.getoption("--hammer-seconds")))
    return max(seconds, LONG_HAMMER_SECONDS) if request.param == "long" else seconds


@pytest.fixture(scope="session")
def tree_hammer_seconds(request: pytest.FixtureRequest) -> float:
    """What `--tree-hammer-seconds` says."""
    return float(str(request.config.getoption("--tree-hammer-seconds")))


@pytest.fixture(scope="session", params=USUALLY_AND_LONG)
def fuzz_share(request: pytest.FixtureRequest) -> Callable[[float], int]:
    """How many cases a test has whose share of `--fuzz-cases` is this; in the long run ten times as many."""
    cases = int(str(request.config.getoption("--fuzz-cases")))
    every = max(cases, LONG_FUZZ_CASES) if request.param == "long" else cases
    return lambda share: round(every * share)


FUZZED: pytest.StashKey[list[str]] = pytest.StashKey()


@pytest.fixture(scope="session")
def fuzz_report(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Takes lines that the end of a longer run shows: what came of the cases."""
    return request.config.stash.setdefault(FUZZED, []).append


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Those lines, where more than the usual cases were wanted."""
    if (lines := config.stash.get(FUZZED, list[str]())) and config.getoption("--fuzz-cases") != FUZZ_CASES:
        terminalreporter.section("fuzzing")
        for line in lines:
            terminalreporter.line(line)


LOOP: pytest.StashKey[asyncio.AbstractEventLoop] = pytest.StashKey()


@pytest.fixture(scope="session", autouse=True)
async def session_loop(request: pytest.FixtureRequest) -> None:
    """Known to the report of a test that was ended for want of an end."""
    request.config.stash[LOOP] = asyncio.get_running_loop()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that ran into its timeout tells what its tasks waited for.

    CPython 3.11 raises `SystemError` where a finalizer that a collection runs parses a source while one is parsed.
    """
    with no_collection():
        report = yield
    if call.excinfo is not None and "Timeout (>" in str(call.excinfo.value) and LOOP in item.config.stash:
        report.sections.append(("Waiting tasks", tasks_of(item.config.stash[LOOP])))
    return report


@pytest.fixture(scope="session")
def servers_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the session's servers keep their files: in memory if there is much, since they make and drop thousands."""
    if MEMORY.is_dir() and disk_usage(MEMORY).free >= MEMORY_BYTES:
        with TemporaryDirectory(prefix="turnstile-tests-", dir=MEMORY) as name:
            yield Path(name)
    else:
        yield tmp_path_factory.mktemp("servers")


@pytest.fixture(scope="session")
async def servers(servers_path: Path) -> AsyncIterator[Endpoints]:
    """PostgreSQL, NATS and Temporal, empty; or those whose addresses are in a file that the environment names."""
    if path := os.environ.get(SERVERS_FILE):
        yield Endpoints.model_validate_json(Path(path).read_text(encoding="utf-8"))  # noqa: ASYNC240 -- once
        return
    async with EmbeddedServers(servers_path / ".turnstile") as running:
        yield running.endpoints


@pytest.fixture(scope="session")
def shared_stack() -> SharedStack:
    """The stack of the modules with that mark, which runs while one of them follows another."""
    return SharedStack()


@pytest.fixture(scope="module", autouse=True)
async def one_stack(shared_stack: SharedStack, request: pytest.FixtureRequest) -> None:
    """The shared stack has ended where a module may open one of its own."""
    node: pytest.Module = request.node
    if not node.get_closest_marker("shared_stack"):
        await shared_stack.close()


@pytest.fixture(scope="session")
async def databases(servers: Endpoints) -> AsyncIterator[Databases]:
    """The session's server as a place for databases. It waits for no disk, and analyzes only what it is asked to."""
    found = Databases(servers.database_url)
    await found.execute("ALTER SYSTEM SET fsync = off")
    await found.execute("ALTER SYSTEM SET autovacuum = off")
    await found.execute("SELECT pg_reload_conf()")
    yield found
    await found.close()


@pytest.fixture(scope="session")
async def migrated(databases: Databases) -> str:
    """The name of a migrated, empty database that nobody is connected to: a template."""
    name = await databases.create()
    pool = Pool(databases.url(name), size=1)
    await migrate(pool)
    await pool.close()
    return name


@pytest.fixture
async def database_url(databases: Databases, migrated: str) -> AsyncIterator[str]:
    """A migrated, empty database of this test alone."""
    name = await databases.lend(migrated)
    yield databases.url(name)
    await databases.take_back(name)


@pytest.fixture
def keeper(databases: Databases, database_url: str) -> Session:
    """A session on this test's database that was there before the test: for checks that many tests make."""
    return databases.keeper(database_url.rpartition("/")[2])


@pytest.fixture
async def open_pool(database_url: str) -> AsyncIterator[Callable[..., Pool]]:
    """Makes pools on this test's database, as many clients as it wants; they are closed after it."""
    async with AsyncExitStack() as stack:

        def opened(*, size: int = 10, name: str = "test") -> Pool:
            pool = Pool(database_url, size=size, name=name)
            stack.push_async_callback(pool.close)
            return pool

        yield opened


@pytest.fixture
def pool(databases: Databases, database_url: str) -> Pool:
    """A pool on this test's database, whose sessions were there before the test."""
    return databases.pool(database_url.rpartition("/")[2])
