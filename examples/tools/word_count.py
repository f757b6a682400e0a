"""A tool in ten lines: how long a text is.

python examples/tools/word_count.py
"""

from typing import Literal

from turnstile import ToolService

service = ToolService()


@service.tool(target="text", suffix="count", timeout_seconds=10)
async def word_count(text: str, unit: Literal["words", "lines", "characters"] = "words") -> dict[str, int]:
    """Count the words, lines or characters of a text. Use it instead of counting yourself.

    text: The text to count in.
    unit: What to count.
    """
    counted = {"words": text.split(), "lines": text.splitlines(), "characters": text}
    return {unit: len(counted[unit])}


if __name__ == "__main__":
    service.main()
