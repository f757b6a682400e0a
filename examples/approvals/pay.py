"""A tool that should not run unasked: it pays. Which of its calls wait for a person, the agent's profile says.

python examples/approvals/pay.py
"""

from turnstile import ToolService

service = ToolService()


@service.tool(target="purse", suffix="pay", timeout_seconds=10)
async def pay(amount: float, to: str) -> str:
    """Pay a bill.

    amount: How much, in euros.
    to: To whom.
    """
    return f"{amount:g} euros were paid to {to}"


if __name__ == "__main__":
    service.main()
