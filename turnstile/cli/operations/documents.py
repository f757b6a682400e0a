"""`turnstile docs`: the documents of this version, which the package holds."""

# ruff: noqa: PLC0415 -- heavy imports wait until a command runs, so that --help is fast

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from turnstile.cli.session import Session


async def docs(
    session: "Session",
    topic: Annotated[
        str | None, typer.Argument(help="A topic, such as models; without it, all topics are listed.")
    ] = None,
) -> None:
    """Print a document of this version, or list them all; `index` sorts them by what you want to do."""
    from importlib.resources import files

    from pydantic import BaseModel

    from turnstile.schema.errors import Refused
    from turnstile.schema.validation import unknown_name

    class Topic(BaseModel):
        topic: str
        title: str

    pages = {
        _topic(page.name): page
        for page in sorted((files("turnstile") / "docs").iterdir(), key=lambda page: _topic(page.name))
        if page.name.endswith(".md")
    }
    if topic is None:
        titles = {name: page.read_text("utf-8").partition("\n")[0].lstrip("# ") for name, page in pages.items()}
        listed = [Topic(topic=name, title=title) for name, title in titles.items()]
        session.out.records("topics", listed, {"topic": lambda line: line.topic, "title": lambda line: line.title})
        return
    name = _topic(topic.lower().removeprefix("docs/").partition("#")[0])
    if name not in pages:
        raise Refused("unknown_topic", f"{topic[:100]!r}: {unknown_name(name, list(pages), 'topic')}")
    text = pages[name].read_text("utf-8")
    session.out.result({"topic": name, "text": text}, text.rstrip("\n"))


def _topic(name: str) -> str:
    """The topic that a file of the documents is printed under: `docs/README.md` is `index`."""
    stem = name.removesuffix(".md")
    return "index" if stem.lower() == "readme" else stem
