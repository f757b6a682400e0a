"""The command line against a running `turnstile up`: one for all tests here, found through --data or the directory."""

import asyncio
import json
import re
import signal
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit
from uuid import UUID

import httpx
import pytest
import yaml

from tests.support.console.visiting import send, visiting, words_of
from tests.support.paths import ROOT
from tests.support.tools import definition
from tests.turnstile.support import launch, read_until, turnstile, until_gone
from turnstile.schema.budgets.limits import BudgetLimits

PROFILES = sorted((ROOT / "examples" / "profiles").glob("*.yaml"))
MEMORY = {"keep": "conversation", "max_context_tokens": 4000, "when_full": "summarize", "keep_last_turns": 4}


@pytest.fixture(scope="module")
async def home(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Path]:
    """A directory in which `turnstile up` runs, with the two agents of the examples."""
    home = tmp_path_factory.mktemp("up")
    process = await launch("up", cwd=home, TURNSTILE__BRIDGE__PENDING_WAKEUP_SECONDS="0.5")
    told = await read_until(process.stdout, "/console/enter?once=")
    assert "Web UI" in told
    assert "postgresql://turnstile@127.0.0.1" in told  # the password is left out
    assert (await turnstile("profile", "put", *PROFILES, cwd=home)).code == 0
    adding = [turnstile("agent", "add", name, "--profile", name, cwd=home) for name in ("guide", "echo")]
    assert [added.code for added in await asyncio.gather(*adding)] == [0, 0]
    yield home
    process.send_signal(signal.SIGINT)
    async with asyncio.timeout(25):
        assert await process.wait() == 0
    await until_gone(home / ".turnstile")


async def test_a_second_up_says_who_holds_the_data(home: Path) -> None:
    ran = await turnstile("up", "--json", cwd=home)
    assert ran.code == 1
    error = ran.json()["error"]
    assert error["code"] == "data_directory_held"
    assert "is held by process" in error["message"]


async def test_http_is_served_with_a_token_that_only_its_owner_reads(home: Path) -> None:
    file = home / ".turnstile" / "token"
    assert file.stat().st_mode & 0o777 == 0o600
    url = json.loads((home / ".turnstile" / "endpoints.json").read_text())["gateway_url"]
    async with httpx.AsyncClient(base_url=url) as web:
        assert (await web.get("/v1/turns")).status_code == 401
        web.headers["authorization"] = f"Bearer {file.read_text().strip()}"
        assert (await web.get("/v1/agents")).status_code == 200


async def test_the_consoles_link_signs_in_once(home: Path) -> None:
    link = urlsplit((await turnstile("console", cwd=home)).out.strip())
    url, page = f"{link.scheme}://{link.netloc}", f"{link.path}?{link.query}"
    async with visiting(url) as web, visiting(url) as late:
        assert (await late.get(page)).status_code == 200  # looking at it does not use it up
        entered = await send(web, page, "/console/enter")
        assert (entered.status_code, entered.headers["location"]) == (303, "/console")
        assert "operator" in words_of((await web.get("/console/session")).text)
        refused = await send(late, page, "/console/enter")
        assert (refused.status_code, "set-cookie" in refused.headers) == (410, False)
        assert "turnstile console prints a new one" in words_of(refused.text)


async def test_enqueue_streams_and_delivers(home: Path) -> None:
    ran = await turnstile("enqueue", "guide", "what is this?", "--wait", cwd=home)
    assert ran.code == 0, ran.err
    streamed, _, delivered = ran.out.partition("deliverable (card ")
    assert "Hello! You asked: what is this?" in streamed
    assert delivered.rstrip().endswith("): the text above")


async def test_a_turn_is_shown_listed_and_watched(home: Path) -> None:
    below = home / "some" / "where"
    below.mkdir(parents=True)
    reply = (await turnstile("enqueue", "echo", "hi", "--correlation-id", "c1", "--json", cwd=below)).json()
    again = (await turnstile("enqueue", "echo", "hi", "--correlation-id", "c1", "--json", cwd=home)).json()
    turn = reply["agent_turn_id"]
    assert (again["agent_turn_id"], again["duplicate"]) == (turn, True)
    watched = await turnstile("watch", turn, cwd=home)
    assert watched.code == 0
    assert "ended: success" in watched.out
    told = (await turnstile("turn", "show", turn, cwd=home)).out
    for part in (turn, "step 1 completed", "You said: hi", f"/namespaces/default/workflows/turn-{turn}"):
        assert part in told
    shown = (await turnstile("turn", "show", turn, "--json", cwd=home)).json()
    assert (shown["status"], shown["deliverable"], len(shown["step_list"])) == ("success", "You said: hi", 1)
    listed = (await turnstile("turn", "list", "--agent", "echo", "--json", cwd=home)).json()
    assert turn in [each["agent_turn_id"] for each in listed]
    rows = (await turnstile("inbox", "list", "--status", "consumed", "--json", cwd=home)).json()
    assert turn in [row["agent_turn_id"] for row in rows]


async def test_an_agents_memory_is_shown_set_and_forgotten(home: Path) -> None:
    asked = await turnstile("enqueue", "echo", "remember me", "--wait", "--json", cwd=home)
    written = asked.json()["output_box_id"]
    shown = (await turnstile("agent", "memory", "echo", "--json", cwd=home)).json()
    assert shown == {"memory_context_box_id": None, "last_output_box_id": written}
    ran = await turnstile("agent", "memory", "echo", written, "--fork", cwd=home)
    assert (ran.code, ran.out[:26]) == (0, "agent echo remembers box 0"), ran.err
    shown = (await turnstile("agent", "memory", "echo", "--json", cwd=home)).json()
    assert shown["memory_context_box_id"] not in {None, written}
    ran = await turnstile("agent", "memory", "echo", "--forget", cwd=home)
    assert ran.out == "agent echo has no memory any more\n", ran.err
    assert "memory       none" in (await turnstile("agent", "memory", "echo", cwd=home)).out


async def test_an_agent_is_paused_resumed_and_retired(home: Path) -> None:
    assert (await turnstile("agent", "add", "sleepy", "--profile", "echo", cwd=home)).code == 0
    told = [await turnstile("agent", verb, "sleepy", cwd=home) for verb in ("pause", "pause")]
    assert [ran.out.startswith("agent sleepy is paused") for ran in told] == [True, True], told[0].err
    assert "as before" in told[1].out
    asked = (await turnstile("enqueue", "sleepy", "hi", "--json", cwd=home)).json()
    shown = await turnstile("turn", "show", asked["agent_turn_id"], cwd=home)
    assert "its agent, which is paused" in shown.out
    listed = (await turnstile("agent", "list", "--json", cwd=home)).json()
    assert [each["status"] for each in listed if each["agent_id"] == "sleepy"] == ["paused"]
    assert (await turnstile("agent", "resume", "sleepy", cwd=home)).out == "agent sleepy is active\n"
    assert (await turnstile("watch", asked["agent_turn_id"], cwd=home)).code == 0
    assert (await turnstile("agent", "retire", "sleepy", "--json", cwd=home)).json()["agent_status"] == "retired"
    refused = await turnstile("enqueue", "sleepy", "hi", "--json", cwd=home)
    assert (refused.code, refused.json()["error"]["code"]) == (1, "agent_inactive")
    nobody = await turnstile("agent", "pause", "nobody", "--json", cwd=home)
    assert (nobody.code, nobody.json()["error"]["code"]) == (1, "unknown_agent")


async def test_a_request_takes_the_place_of_an_earlier_one(home: Path) -> None:
    assert (await turnstile("agent", "add", "patient", "--profile", "echo", cwd=home)).code == 0
    assert (await turnstile("agent", "pause", "patient", cwd=home)).code == 0
    again = ("enqueue", "patient", "hi", "--conversation", "c1", "--multitask")
    first = (await turnstile(*again, "enqueue", "--json", cwd=home, TURNSTILE_PRINCIPAL="me")).json()
    second = await turnstile(*again, "rollback", cwd=home, TURNSTILE_PRINCIPAL="me")
    assert f"turn {first['agent_turn_id']} is stopped for it" in second.out, second.err
    told = await turnstile(*again, "steer", cwd=home, TURNSTILE_PRINCIPAL="me")
    assert (told.out.endswith(" reads it\n"), told.out.split()[1]) == (True, second.out.split()[1]), told.err
    for wrong, code in (("reject", "turn_in_progress"), ("later", "usage")):
        refused = await turnstile(*again, wrong, "--json", cwd=home, TURNSTILE_PRINCIPAL="me")
        assert refused.json()["error"]["code"] == code
    nameless = await turnstile(*again, "interrupt", cwd=home)
    assert (nameless.code, "TURNSTILE_PRINCIPAL" in nameless.err) == (1, True)
    direct = await turnstile(*again, "interrupt", "--direct", cwd=home)
    assert (direct.code, "leave out --direct" in direct.err) == (2, True)
    assert (await turnstile("agent", "resume", "patient", cwd=home)).code == 0
    shown = await turnstile("turn", "show", first["agent_turn_id"], cwd=home)
    assert "the turn was stopped by me" in shown.out


async def test_a_box_is_made_of_parts_and_shown(home: Path) -> None:
    asked = (await turnstile("enqueue", "echo", "remember me", "--wait", "--json", cwd=home)).json()
    written, card = asked["output_box_id"], asked["deliverable_card_id"]
    (home / "more.txt").write_text("from a file")
    fields = '{"fields": [{"name": "sum"}]}'
    parts = (f"card:{card}", f"box:{written}:2", "text:a: text", "@more.txt", fields)
    made = await turnstile("box", "make", *parts, "--correlation-id", "b1", cwd=home)
    assert (made.code, made.out.endswith("with 5 cards\n")) == (0, True), made.err
    again = (await turnstile("box", "make", *parts, "--correlation-id", "b1", "--json", cwd=home)).json()
    assert (again["duplicate"], again["box_id"] in made.out) == (True, True)
    shown = (await turnstile("box", "show", again["box_id"], "--json", cwd=home)).json()
    types = ["task.deliverable", "agent.thought", "task.instruction", "task.instruction", "task.result_fields"]
    assert [each["metadata"]["type"] for each in shown["cards"]] == types
    assert [each["content"].get("text") for each in shown["cards"]][2:4] == ["a: text", "from a file"]
    listed = await turnstile("box", "show", again["box_id"], "--last", "2", cwd=home)
    assert ("from a file" in listed.out, "a: text" in listed.out) == (True, False)
    for part, code in (("remember", "bad_request"), (f"box:{written}:x", "bad_request"), ("{", "bad_request")):
        assert (await turnstile("box", "make", part, "--json", cwd=home)).json()["error"]["code"] == code
    missing = await turnstile("box", "make", "text:a", "card:none", "--json", cwd=home)
    assert (missing.code, missing.json()["error"]["code"]) == (1, "unknown_card")
    nobody = await turnstile("box", "show", "00000000-0000-7000-8000-000000000000", "--json", cwd=home)
    assert (nobody.code, nobody.json()["error"]["code"]) == (1, "unknown_box")


def split_as_told(home: Path, message: str, file: str) -> list[str]:
    """The files that the command in an error makes of a file."""
    told = re.search(r"`(split [^`]*)`", message)
    assert told, message
    subprocess.run(told[1].replace("FILE", file).split(), cwd=home, check=True)
    return sorted(path.name for path in home.glob("part-*"))


async def test_a_long_text_goes_into_a_box_or_comes_from_a_file(home: Path) -> None:
    (home / "long.txt").write_text("long words " * 40_000)
    (home / "longer.txt").write_text("x" * 524_289)
    made, refused, asked = await asyncio.gather(
        turnstile("box", "put", "long.txt", "long.txt", "--json", cwd=home),
        turnstile("box", "put", "longer.txt", "--json", cwd=home),
        turnstile("enqueue", "echo", "--file", "long.txt", "--wait", "--json", cwd=home),
    )
    assert asked.json()["deliverable"].startswith("You said: long words long words"), asked.err
    assert (refused.code, refused.json()["error"]["code"]) == (1, "text_too_large")
    parts = split_as_told(home, refused.json()["error"]["message"], "longer.txt")
    split = await turnstile("box", "put", *parts, "--json", cwd=home)
    assert (len(parts), len(split.json()["card_ids"])) == (2, 2), split.out
    box = made.json()["box_id"]
    asked = await turnstile("enqueue", "echo", "--context-box", box, "--wait", "--json", cwd=home)
    assert asked.json()["transcript"]["request"] == ["long words " * 40_000] * 2, asked.err
    neither = await turnstile("enqueue", "echo", "--json", cwd=home)
    assert (neither.code, neither.json()["error"]["code"]) == (2, "bad_request")


async def test_a_profile_is_shown_as_it_can_be_put_and_remarked_on(home: Path) -> None:
    shown = await turnstile("profile", "show", "ECHO", cwd=home)
    assert shown.code == 0, shown.err
    profile = yaml.safe_load(shown.out)
    odd = {
        "name": "odd",
        "allowed_tools": ["web_serch"],
        "must_end_with": ["submit_reslt"],
        "system_prompt_template": "You are {agent} of {project_id}.",
        "llm_config": profile["llm_config"] | {"model": "antropic/claude-x", "max_tokens": 500},
        "worker_target": "worker_genric",
        "memory": {**MEMORY, "summary_model": "opnai/gpt-x"},
        "budget": {**dict.fromkeys(BudgetLimits.model_fields), "max_tokens": 500, "max_cost_usd": 0.25, "max_turns": 0},
    }
    (home / "odd.yaml").write_text(yaml.safe_dump(profile | odd))
    (home / "tool.yaml").write_text(yaml.safe_dump(definition("web_search").model_dump(mode="json")))
    assert (await turnstile("tool", "put", "tool.yaml", cwd=home)).code == 0
    put = await turnstile("profile", "put", "odd.yaml", cwd=home)
    assert put.code == 0, put.err
    for said in ("'web_serch'", "'web_search'?", "'submit_result'?", "'agent_id'?", "'anthropic/claude-x'?"):
        assert said in put.err
    for said in ("max_turns 0, which is nothing", "every answer reserves 500", "unpriced_model"):
        assert said in put.err
    for said in ("summary_model", "'openai/gpt-x'?", "'worker_genric'", "'worker_generic'?"):
        assert said in put.err
    as_json = (await turnstile("profile", "put", "odd.yaml", "--json", cwd=home)).json()
    assert len(as_json[0]["warnings"]) == 9
    again = await turnstile("profile", "show", "odd", "--json", cwd=home)
    assert again.json() == profile | odd
    assert (await turnstile("profile", "show", "nope", "--json", cwd=home)).json()["error"]["code"] == "unknown_profile"


@pytest.mark.parametrize(
    ("memory", "says"),
    [
        ({"max_context_tokens": 4}, "the prompt alone takes 5 or more"),
        ({"max_context_tokens": 100, "keep_last_turns": 101}, "101 turns (keep_last_turns) never fit"),
    ],
)
async def test_a_memory_that_holds_no_turn_is_refused_and_nothing_stored(
    home: Path, memory: dict[str, int], says: str
) -> None:
    profile = {"name": "small", "system_prompt_template": "You are brief and kind.", "memory": memory}
    (home / "small.yaml").write_text(yaml.safe_dump({**profile, "llm_config": {"model": "scripted/echo"}}))
    refused = await turnstile("profile", "put", "small.yaml", "--json", cwd=home)
    error = refused.json()["error"]
    assert (refused.code, error["code"]) == (1, "memory_too_small")
    assert says in error["message"]
    assert (await turnstile("profile", "show", "small", "--json", cwd=home)).json()["error"][
        "code"
    ] == "unknown_profile"


async def test_an_agent_is_removed_unless_it_has_work(home: Path) -> None:
    assert (await turnstile("agent", "add", "brief", "--profile", "echo", cwd=home)).code == 0
    asked = (await turnstile("enqueue", "brief", "hi", "--wait", "--json", cwd=home)).json()
    removed = await turnstile("agent", "remove", "brief", cwd=home)
    assert (removed.code, "removed" in removed.out) == (0, True), removed.err
    shown, again, refused = await asyncio.gather(
        turnstile("turn", "show", asked["agent_turn_id"], "--json", cwd=home),
        turnstile("enqueue", "brief", "hi", "--json", cwd=home),
        turnstile("agent", "remove", "brief", "--json", cwd=home),
    )
    assert shown.json()["deliverable"] == "You said: hi"
    assert again.json()["error"]["code"] == "unknown_agent"
    assert refused.json()["error"]["code"] == "unknown_agent"


async def test_the_shell_completes_commands(home: Path) -> None:
    asked = {"_TURNSTILE_COMPLETE": "complete_bash", "COMP_WORDS": "turnstile profile sh", "COMP_CWORD": "2"}
    assert (await turnstile(cwd=home, **asked)).out.split() == ["show"]
    assert "--install-completion" in (await turnstile("--help", cwd=home)).out


async def test_watch_an_agent_until_interrupted(home: Path) -> None:
    watching = await launch("watch", "guide", cwd=home)
    await read_until(watching.stderr, "watching agent guide")
    await turnstile("enqueue", "guide", "watched", cwd=home)
    told = await read_until(watching.stdout, "task turn")
    assert "Hello! You asked: watched" in told
    assert "running, epoch" in told
    watching.send_signal(signal.SIGINT)
    async with asyncio.timeout(25):
        assert await watching.wait() == 130


async def test_direct_needs_no_nats(home: Path) -> None:
    (home / "away.toml").write_text('[nats]\nservers = "nats://127.0.0.1:1"\npatience_seconds = 1.3\n')
    away = await turnstile("enqueue", "echo", "hi", "--config", "away.toml", cwd=home)
    assert away.code == 3
    assert "waiting for NATS at nats://127.0.0.1:1" in away.err
    assert "(server_unavailable)" in away.err
    ran = await turnstile("enqueue", "echo", "direct", "--direct", "--wait", "--config", "away.toml", cwd=home)
    assert ran.code == 0, ran.err
    assert "You said: direct" in ran.out


async def test_a_turn_that_fails_exits_1(home: Path) -> None:
    asked = ("enqueue", "echo", "hi", "--model", "scripted/nope", "--wait")
    said, as_json = await asyncio.gather(turnstile(*asked, cwd=home), turnstile(*asked, "--json", cwd=home))
    assert (said.code, as_json.code) == (1, 1)
    assert "(model_unknown)" in said.err
    assert as_json.json()["error_code"] == "model_unknown"


@pytest.mark.parametrize(
    ("command", "exit_code", "code"),
    [
        (["enqueue", "nobody", "hi"], 1, "unknown_agent"),
        (["enqueue", "echo", "hi", "--project", "nope"], 1, "unknown_project"),
        (["enqueue", "echo", "hi", "--profile", "nope"], 1, "unknown_profile"),
        (["enqueue", "a.b", "hi"], 2, "bad_request"),
        (["enqueue", "echo", "hi", "--conversation", "a\nb"], 2, "bad_request"),
        (["enqueue", "echo", "hi", "--conversation", "c", "--output-box", str(UUID(int=1))], 2, "bad_request"),
        (["enqueue", "hi", "--profile", "echo"], 1, "no_instances"),
        (["box", "make", f"box:{UUID(int=1)}"], 1, "unknown_box"),
        (["box", "make", "card:nope"], 1, "unknown_card"),
        (["conversation", "show", "nope"], 1, "unknown_conversation"),
        (["agent", "add", "echo", "--profile", "echo"], 1, "agent_exists"),
        (["agent", "memory", "nobody"], 1, "unknown_agent"),
        (["agent", "memory", "echo", "nope"], 2, "bad_request"),
        (["agent", "memory", "echo", "--fork"], 2, "bad_request"),
        (["turn", "show", "nope"], 1, "unknown_turn"),
        (["watch", "nope"], 1, "unknown_agent"),
        (["inbox", "list", "--status", "nope"], 2, "usage"),
        (["profile", "put", "nope.yaml"], 2, "config_error"),
        (["turn", "list", "--data", "nope"], 2, "config_error"),
    ],
)
async def test_bad_input_has_a_code(home: Path, command: list[str], exit_code: int, code: str) -> None:
    ran = await turnstile(*command, "--json", cwd=home)
    assert (ran.code, ran.json()["error"]["code"]) == (exit_code, code)


async def test_an_error_for_people_is_one_line_and_a_hint(home: Path) -> None:
    ran = await turnstile("enqueue", "nobody", "hi", cwd=home)
    assert (ran.code, ran.out) == (1, "")
    error, hint = ran.err.splitlines()
    assert error == "error: the project has no such agent: add it first (unknown_agent)"
    assert hint.startswith("hint:  `turnstile agent list` shows the agents")


async def test_migrate_is_idempotent(home: Path) -> None:
    report = (await turnstile("migrate", "--json", cwd=home)).json()
    assert report["schema_files"] == []
    assert "cg_evt_v1r4" in report["streams"]


async def test_a_database_without_migrations_is_named(home: Path, database_url: str, bare_database_url: str) -> None:
    url = bare_database_url
    ran = await turnstile("token", "list", "--json", cwd=home, TURNSTILE__DATABASE__URL=url)
    assert (ran.code, ran.json()["error"]["code"]) == (1, "not_migrated")
    ran = await turnstile("token", "list", "--json", cwd=home, TURNSTILE__DATABASE__URL=database_url)
    assert (ran.code, ran.json()) == (0, [])


def words_of_output(text: str) -> set[str]:
    """Words that name something: ids, names, and what is written out. Times and counts change from run to run."""
    found = re.sub(r"[│┃┏┓┗┛━┳┻╇┡┩└┘─┴┬╋├╭╮╰╯]", " ", text).split()
    return {word.strip("(),:;`'\"") for word in found if len(word) > 5 and re.search(r"[a-z]{3}", word)}


SHORT = frozenset({"turn", "conversation", "usage"})
BEGINNING_OF_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}")
"""What a narrow `turn list` shows of a turn's id, which may have three letters in a row."""


@pytest.mark.parametrize("widths", [("60",), pytest.param(("60", "80"), marks=pytest.mark.long)])
async def test_no_command_breaks_a_word(home: Path, widths: tuple[str, ...]) -> None:
    """What a command prints at this width has no word that it does not print at a width of 200."""
    name = "an-agent-with-a-name-as-long-as-people-give-them-0001"
    (home / "long.yaml").write_text(json.dumps({"name": name, "llm_config": {"model": "scripted/echo"}}))
    assert (await turnstile("profile", "put", "long.yaml", cwd=home)).code == 0
    await turnstile("agent", "add", name, "--profile", name, cwd=home)
    said = "a sentence that is long enough to need a second line, and a third one, at sixty columns"
    named = ("--conversation", "a-conversation-of-some-length")
    asked = (await turnstile("enqueue", name, said, *named, "--wait", "--json", cwd=home)).json()
    commands = [
        *(("turn", "list"), ("turn", "show", asked["agent_turn_id"]), ("turn", "tree", asked["agent_turn_id"])),
        *(("usage",), ("conversation", "list"), ("conversation", "show", named[1])),
        *(("agent", "list"), ("profile", "list"), ("profile", "show", name), ("tool", "list"), ("listeners",)),
        *(("usage", "--by", "agent"), ("budget", "list"), ("approvals", "list"), ("token", "list"), ("model", "list")),
        *(("thread", "list"), ("inbox", "list"), ("mcp", "list"), ("box", "show", asked["output_box_id"])),
        *(("audit",), ("worker-version", "list")),
    ]
    if len(widths) == 1:
        commands = [command for command in commands if command[0] in SHORT]

    async def shown(command: tuple[str, ...], **variables: str) -> tuple[int, set[str]]:
        ran = await turnstile(*command, cwd=home, **variables)
        return ran.code, words_of_output(ran.out + ran.err)

    for command in commands:
        whole, *narrow = await asyncio.gather(shown(command), *(shown(command, COLUMNS=width) for width in widths))
        for code, words in narrow:
            assert code == whole[0], command
            cut = {word for word in words if word.endswith("…") or BEGINNING_OF_ID.fullmatch(word)}
            assert words - whole[1] - cut == set(), command
