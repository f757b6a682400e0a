"""A tool for these tests."""

from turnstile.sdk.tools.service import ToolFailed, ToolService


def a_tool(name: str) -> tuple[ToolService, str]:
    """A service of the project `demo` with one tool of this name, which fails for a text that begins with `fail`."""
    service = ToolService("demo")

    @service.tool(target=name, suffix="run", name=name)
    async def count(text: str) -> int:
        """Count the words of a text.

        text: The text.
        """
        if text.startswith("fail"):
            raise ToolFailed("unlucky", text)
        return len(text.split())

    assert count is not None
    return service, name
