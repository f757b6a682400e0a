"""`--budget` of `enqueue` and `turn rerun`, as text."""

import pytest

from turnstile.cli.turns.texts import budget_option
from turnstile.schema.errors import BadRequest


def test_each_limit_has_a_word() -> None:
    given = budget_option("tokens=50_000, usd=0.50,turns=8,seconds=600")
    assert given is not None
    assert {name: str(value) for name, value in given.items()} == {
        "max_tokens": "50000",
        "max_cost_usd": "0.5",
        "max_turns": "8",
        "max_seconds": "600",
    }
    assert budget_option(None) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "'' is none of tokens=N"),
        ("tokens", "'tokens' is none of"),
        ("dollars=3", "'dollars=3' is none of"),
        ("tokens=1,tokens=2", "each at most once"),
        ("tokens=-1", "tokens: "),
        ("tokens=many", "tokens: "),
        ("usd=nan", "usd: "),
        ("usd=0.0000001", "usd: "),
        ("turns=1e400", "turns: "),
        ("seconds=", "seconds: "),
    ],
)
def test_what_is_wrong_is_named_by_its_word(text: str, said: str) -> None:
    with pytest.raises(BadRequest) as refused:
        budget_option(text)
    assert said in str(refused.value)
    assert str(refused.value).startswith("--budget")
