"""What the pages of people hold, and how their forms are sent."""

from collections.abc import Mapping
from html.parser import HTMLParser

import httpx

from tests.support.console.visiting import words_of


class _Pieces(HTMLParser):
    """The forms of a page, each with its fields as they are, and the ids of its elements with their text."""

    def __init__(self) -> None:
        super().__init__()
        self.forms: list[tuple[str, dict[str, str]]] = []
        self.buttons: list[tuple[str, str]] = []
        self._area: str | None = None
        self._select: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        name, fields = attributes.get("name", ""), self.forms[-1][1] if self.forms else {}
        match tag:
            case "form":
                self.forms.append((attributes.get("action", ""), {}))
            case "input" if name:
                fields[name] = attributes.get("value", "")
            case "textarea":
                self._area, fields[name] = name, ""
            case "select":
                self._select, fields[name] = name, ""
            case "option" if self._select is not None and "selected" in attributes:
                fields[self._select] = attributes.get("value", "")
            case "button" if name:
                self.buttons.append((name, attributes.get("value", "")))
            case _:
                pass

    def handle_endtag(self, tag: str) -> None:
        if tag == "textarea" and self._area is not None:
            fields = self.forms[-1][1]
            fields[self._area] = fields[self._area].removeprefix("\n")
            self._area = None
        elif tag == "select":
            self._select = None

    def handle_data(self, data: str) -> None:
        if self._area is not None:
            self.forms[-1][1][self._area] += data


class Shown:
    """A page that was answered."""

    def __init__(self, answer: httpx.Response) -> None:
        self.status = answer.status_code
        self.text = answer.text
        self.words = words_of(answer.text)
        pieces = _Pieces()
        pieces.feed(answer.text)
        self.forms = pieces.forms
        self.buttons = pieces.buttons

    def form(self, *names: str) -> tuple[str, dict[str, str]]:
        """The form that has these fields: where it goes, and its fields as they are."""
        return next((action, dict(fields)) for action, fields in self.forms if fields.keys() >= set(names))


async def look(web: httpx.AsyncClient, page: str, status: int = 200) -> Shown:
    """Open a page."""
    shown = Shown(await web.get(page))
    assert shown.status == status, shown.words
    return shown


async def press(
    web: httpx.AsyncClient, shown: Shown, *names: str, fields: Mapping[str, str] | None = None
) -> httpx.Response:
    """Send the form of a page that has the fields `names`, with these typed."""
    action, own = shown.form(*names)
    return await web.post(action, data={**own, **(fields or {})})
