"""`turnstile profile`: put, show and list."""

# ruff: noqa: PLC0415 -- heavy imports wait until a command runs, so that --help is fast

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turnstile.cli.command import command

if TYPE_CHECKING:
    from pydantic import JsonValue

    from turnstile.cli.session import Session

app = typer.Typer()


@command(app, "put", project=True)
async def put(
    session: "Session",
    files: Annotated[list[Path], typer.Argument(help="YAML files, one profile each.", metavar="FILE...")],
    check: Annotated[bool, typer.Option(help="Check that a scripted model exists.")] = True,
) -> None:
    """Store profiles from YAML files. Agents take the new version with their next turn.

    `models: [NAME, "begin*"]` in a file lists other models that requests may name; `free: true` lets them name the
    profile beside any agent, and any model. Without these only operators may.
    """
    from turnstile.cli.roster.profile_check import profile_warnings
    from turnstile.ledger.roster import put_profile
    from turnstile.settings.yaml_files import check_scripted, read_profile

    profiles = [read_profile(file) for file in files]
    if check:
        for profile in profiles:
            await check_scripted(profile, session.settings.model.scripts)
    stored: list[JsonValue] = []
    async with session.ledger() as pool:
        for profile in profiles:
            box, created, agents = await put_profile(pool, session.project, profile)
            warnings = await profile_warnings(pool, session.project, profile, session.settings)
            facts: dict[str, JsonValue] = {"name": profile.name, "profile_box_id": box, "created": created}
            stored.append({**facts, "agents": agents, "warnings": [*warnings]})
            if not session.out.as_json:
                verb = "added" if created else f"replaced; {agents} agent{'s use' if agents != 1 else ' uses'} it"
                session.out.line(f"profile {profile.name} {verb} (box {box})")
                for warning in warnings:
                    session.out.remark(f"warning: profile {profile.name}: {warning}")
    if session.out.as_json:
        session.out.document(stored)


@command(app, "show", project=True)
async def show_one(
    session: "Session", profile: Annotated[str, typer.Argument(help="The profile's name.", metavar="NAME")]
) -> None:
    """Show a profile as YAML that `profile put` takes."""
    import yaml

    from turnstile.ledger.roster import get_profile

    async with session.ledger() as pool:
        stored = await get_profile(pool, session.project, profile)
    session.out.result(stored, yaml.safe_dump(stored, sort_keys=False, allow_unicode=True, width=1000).rstrip())


@command(app, "list", project=True)
async def show(session: "Session") -> None:
    """List the project's profiles."""
    from turnstile.ledger.roster import list_profiles

    async with session.ledger() as pool:
        rows = await list_profiles(pool, session.project)
    session.out.records(
        f"profiles of {session.project}",
        rows,
        {
            "name": lambda row: row.name,
            "worker target": lambda row: row.worker_target,
            "tags": lambda row: row.tags,
            "agents": lambda row: row.agents,
            "updated": lambda row: row.updated_at,
            "box": lambda row: row.profile_box_id,
        },
    )
