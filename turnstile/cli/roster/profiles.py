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
    from turnstile.schema import verbs
    from turnstile.schema.wire.roster_requests import ProfilePutRequest
    from turnstile.settings.yaml_files import check_scripted, read_profile

    profiles = [read_profile(file) for file in files]
    if check:
        for profile in profiles:
            await check_scripted(profile, session.settings.model.scripts)
    stored: list[JsonValue] = []
    async with session.bridge() as client:
        await session.await_bridge(client)
        for profile in profiles:
            put = await client.call(verbs.PROFILE_PUT, ProfilePutRequest(profile=profile))
            facts = ("name", "profile_box_id", "created", "agents", "warnings")
            stored.append(put.model_dump(mode="json", include={*facts}))
            if not session.out.as_json:
                uses = "agents use" if put.agents != 1 else "agent uses"
                verb = "added" if put.created else f"replaced; {put.agents} {uses} it"
                session.out.line(f"profile {profile.name} {verb} (box {put.profile_box_id})")
                for warning in put.warnings:
                    session.out.remark(f"warning: profile {profile.name}: {warning}")
    if session.out.as_json:
        session.out.document(stored)


@command(app, "show", project=True)
async def show_one(
    session: "Session", profile: Annotated[str, typer.Argument(help="The profile's name.", metavar="NAME")]
) -> None:
    """Show a profile as YAML that `profile put` takes."""
    import yaml

    from turnstile.schema.ledger_reads import ProfileRead, ReadRequest
    from turnstile.sdk.requests import parse_request

    request = ReadRequest(profile=parse_request(ProfileRead, {"name": profile}))
    stored = (await session.read(request)).profile
    session.out.result(stored, yaml.safe_dump(stored, sort_keys=False, allow_unicode=True, width=1000).rstrip())


@command(app, "list", project=True)
async def show(session: "Session") -> None:
    """List the project's profiles."""
    from turnstile.schema import verbs

    rows = await session.listed(verbs.PROFILE_LIST, lambda reply: (reply.profiles, reply.next))
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
