"""What strangers write where the console shows it: texts that would run, load or break something if they were markup.

A text that becomes markup leaves an element with `data-evil`, calls `ran`, or makes a request; one that becomes a
template shows 1337.
"""

from turnstile.schema.base import JsonObject

RAN = "window.__ran.push"
TEXTS = (
    f"<script data-evil>{RAN}('script')</script>",
    f"<img data-evil src=x onerror=\"{RAN}('img')\">",
    f'"><svg data-evil onload="{RAN}(\'svg\')">',
    f"' data-evil onmouseover='{RAN}(1)' onfocus='{RAN}(2)' autofocus tabindex='1",
    f'" data-evil onmouseover="{RAN}(3)" onfocus="{RAN}(4)" autofocus tabindex="1',
    '</textarea></pre></title></script><iframe data-evil srcdoc="<script>parent.__ran.push(7)</script>"></iframe>',
    "<style data-evil>main { display: none }</style><base data-evil href='https://evil.example/'>",
    "<meta data-evil http-equiv='refresh' content='0; url=https://evil.example/'>",
    "<form data-evil action='https://evil.example/'><input data-evil name=csrf></form>",
    "{{ 191 * 7 }}{% for each in [1] %}{{ 191 * 7 }}{% endfor %}${191 * 7}#{191 * 7}",
    "\u202egnirts desrever\u202c \u200b\u2066bidi\u2069 \ufeff\u0007",
    f"<!--><img data-evil src=x onerror=\"{RAN}('comment')\">-->]]>",
    f"<math data-evil><mtext><table><mglyph><style><img data-evil src=x onerror=\"{RAN}('math')\">",
)
"""Texts for names, labels and values."""
MARKDOWN = (
    *(f"[a link]({name}:{RAN}(8))" for name in ("javascript", "JaVaScRiPt", "vbscript", "java&#10;script")),
    f"[data](data:text/html;base64,PHNjcmlwdD5hbGVydCgxKTwvc2NyaXB0Pg==) <javascript:{RAN}('auto')>",
    f'![an image](https://evil.example/pixel.png "x" onerror="{RAN}(\'image\')")',
    "![tracking](//evil.example/pixel.png) [//](//evil.example) [home](/console/leave)",
    f"[reference]: javascript:{RAN}('reference)')\n\n[reference]",
    f"| a | b |\n|---|---|\n| <img data-evil src=x onerror={RAN}('cell')> | [x](javascript:{RAN}('cell')) |",
    f"```html\n<script data-evil>{RAN}('fence')</script>\n```\n\n`<img data-evil src=x onerror={RAN}('code')>`",
    f'[quoted](https://example.org/"onmouseover="{RAN}(5) "title\\" data-evil onmouseover=\\"{RAN}(6)")',
    "# " + "long" * 400,
    "> " * 60 + "deep",
    "- " * 60 + "deep",
)
"""Texts for what is read as Markdown."""
NAME = "".join(TEXTS[:2])[:128]
"""A name of a profile."""
EVERYTHING = "\n\n".join((*TEXTS, *MARKDOWN))


def everywhere() -> JsonObject:
    """JSON with all of it, as names and as values."""
    return {text: [text, {text: None}] for text in (*TEXTS, *MARKDOWN)}
