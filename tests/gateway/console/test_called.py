"""By which name a page calls who asked."""

import pytest

from turnstile.gateway.console.formats import caller_name

LABELS = {"token.0f3c11aa22bb33cc44dd": "Nadia, <b>operations</b>\u202e"}


def test_a_token_is_called_by_its_label_and_its_id() -> None:
    assert caller_name(LABELS, "token.0f3c11aa22bb33cc44dd") == (
        '<span class="person" title="token.0f3c11aa22bb33cc44dd">Nadia, &lt;b&gt;operations&lt;/b&gt;[U+202E]'
        ' <span class="id">0f3c11</span></span>'
    )


@pytest.mark.parametrize("sender", ["Nadia, <b>operations</b>", "token.ffff", "alice"])
def test_nobody_else_can_be_called_so(sender: str) -> None:
    """What a client of NATS says of itself is shown as it is, and escaped by the template."""
    named = caller_name(LABELS, sender)
    assert named == sender
    assert type(named) is str


def test_nobody_has_no_name() -> None:
    assert caller_name(LABELS, None) == ""
