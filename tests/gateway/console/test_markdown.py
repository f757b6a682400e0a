"""Markdown of strangers: whatever they write, a browser runs nothing, loads nothing and hides nothing."""

from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.cpu import cheap
from turnstile.gateway.console.templating import LONGEST, RENDERED, allowed, markdown

TAGS = {
    *(
        "p",
        "h3",
        "h4",
        "h5",
        "h6",
        "ul",
        "ol",
        "li",
        "blockquote",
        "pre",
        "code",
        "em",
        "strong",
        "hr",
        "br",
        "a",
        "span",
    ),
    *("table", "thead", "tbody", "tr", "th", "td"),
}
HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg/onload=alert(1)>",
    "[a](javascript:alert(1))",
    "[a](JaVaScRiPt:alert(1))",
    "[a](java\tscript:alert(1))",
    "[a](&#106;avascript:alert(1))",
    "[a](data:text/html,<script>alert(1)</script>)",
    "[a](vbscript:x)",
    "[a](//evil.example/x)",
    "[a](/console/leave)",
    "[a](file:///etc/passwd)",
    "[a][b]\n\n[b]: javascript:alert(1)",
    '[a](http://x.example "onmouseover=alert(1) \\"")',
    "<javascript:alert(1)>",
    "![a](javascript:alert(1))",
    "![a](http://x.example/y.png)",
    '![" onerror="alert(1)](http://x.example)',
    '```"><script>alert(1)</script>\ncode\n```',
    "`<script>alert(1)</script>`",
    "| a |\n|:-:|\n| <script>alert(1)</script> |",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "<!-- --><style>*{display:none}</style>",
    "[a](http://user:word@good.example@evil.example/)",
    "[a](http://[::1)",
    "# a\n<iframe srcdoc='x'>",
    "{{ 7 * 7 }}{% raw %}",
    "\0\u202e\U000e0041",
]


class Seen(HTMLParser):
    """What a browser would make of a piece of HTML."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in TAGS, tag
        given = dict(attrs)
        match tag:
            case "a":
                assert given.keys() == {"href", "rel"}
                assert given["rel"] == "noopener noreferrer nofollow"
                assert allowed(str(given["href"]))
                self.links.append(str(given["href"]))
            case "span":
                assert given == {"class": "host"}
            case "ol":
                assert given.keys() <= {"start"}
                assert str(given.get("start", "1")).isdigit()
            case "pre":
                assert given == {"tabindex": "0"}
            case _:
                assert given == {}, tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_comment(self, data: str) -> None:
        raise AssertionError(data)

    def handle_decl(self, decl: str) -> None:
        raise AssertionError(decl)


@pytest.mark.parametrize("text", HOSTILE)
def test_nothing_of_it_is_markup_of_its_own(text: str) -> None:
    Seen(markdown(text))


@given(st.text(st.sampled_from("<>[]()!`*_#|:-=&;\"'\\/\n\t ahtp.x\u202e\u200b1"), max_size=120))
def test_nothing_that_is_drawn_is_markup_of_its_own(text: str) -> None:
    seen = Seen(markdown(text))
    assert not {"\u202e", "\u200b"} & {*seen.text}


def test_a_link_says_whom_it_leads_to() -> None:
    shown = markdown(
        "[bank](https://bank.example@evil.example:8443/login) <http://a.example> [me](mailto:me@b.example)"
    )
    seen = Seen(shown)
    assert len(seen.links) == 3
    assert "bank (evil.example) http://a.example (a.example) me (me@b.example)" in seen.text


def test_an_image_is_a_link_and_loads_nothing() -> None:
    assert Seen(markdown("![a cat](http://x.example/cat.png)")).text.strip() == "a cat (x.example)"
    inside = Seen(markdown("[![a cat](http://x.example/cat.png)](http://y.example)"))
    assert (inside.links, inside.text.strip()) == (["http://y.example"], "[a cat] (y.example)")


def test_what_is_not_seen_is_shown_also_where_an_entity_stands_for_it() -> None:
    assert Seen(markdown("a\u202eb&#x202e;c `\u200b`")).text.strip() == "a[U+202E]b[U+202E]c [U+200B]"
    family = "\U0001f469\u200d\U0001f467"
    assert family in markdown(f"a {family} is one character")


def test_titles_come_below_those_of_the_page() -> None:
    assert [markdown("#" * level + " a")[1:3] for level in range(1, 7)] == ["h3", "h4", "h5", "h6", "h6", "h6"]


def test_a_long_text_is_shown_as_it_is_and_a_longer_one_cut() -> None:
    text = "**a** " * (RENDERED // 6 + 1)
    assert markdown(text) == f'<pre tabindex="0">{text}</pre>'
    cut = Seen(markdown("a" * (LONGEST + 1234)).replace(' class="cut"', ""))
    assert cut.text == "a" * LONGEST + "1,234 more characters are not shown here."


@pytest.mark.parametrize(
    "piece", ["[", "![", "[a](", "*a ", "_a__b_", "`a``b```", "<a ", "> ", "- ", "|a", "&amp;", "\\["]
)
def test_no_text_takes_long(piece: str) -> None:
    text = (piece * RENDERED)[:RENDERED]
    cheap(1.0, lambda: markdown(text))


@pytest.mark.parametrize("depth", [1, 20, 40, 400])
def test_nothing_is_left_out_however_deep_it_is(depth: int) -> None:
    assert "deep" in markdown(">" * depth + " deep")
    assert "deep" in markdown("\n".join("  " * level + "- x" for level in range(depth)) + " deep")
