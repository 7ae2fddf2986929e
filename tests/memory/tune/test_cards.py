"""A process that leaves the card to its children."""

from types import SimpleNamespace

import pytest

from kerasmem.extras.tune import advice

pytestmark = pytest.mark.one_backend


@pytest.mark.parametrize(
    ("count", "started", "asked"),
    [(1, False, [{"growth": True}]), (1, True, []), (0, False, [])],
)
def test_memory_is_taken_as_it_is_needed_if_there_is_a_card_and_time(
    monkeypatch, count, started, asked
):
    settings = SimpleNamespace(cards=lambda _: count, started=lambda: started)
    backend = SimpleNamespace(settings=lambda: settings)
    calls = []
    monkeypatch.setattr(advice, "backends", SimpleNamespace(current=lambda: backend))
    monkeypatch.setattr(advice, "configure", lambda **given: calls.append(given))
    advice.leave_room()
    assert calls == asked
