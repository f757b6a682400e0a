"""A tool with a button: a lamp that is on or off. Models may call it too, where a profile allows it.

python examples/ui/light.py
"""

from turnstile import ToolService

service = ToolService()


@service.tool(target="light", suffix="switch", timeout_seconds=10)
async def switch_light(on: bool) -> dict[str, bool]:
    """Switch the lamp on or off.

    on: Whether it is to shine.
    """
    return {"on": on}


if __name__ == "__main__":
    service.main()
