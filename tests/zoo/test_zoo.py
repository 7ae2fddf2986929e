"""Pairs of a kind of model and a verb: all kinds, each with one verb or more."""

import pytest

from tests.zoo.kinds import KINDS
from tests.zoo.row import DEFECT, OF_KERAS, run_cell
from tests.zoo.table import table
from tests.zoo.verbs import VERBS

pytestmark = [pytest.mark.one_backend, pytest.mark.slow]

IN_PROCESS = [
    name
    for name in VERBS
    if not name.startswith(("kerasmem ", "find_batch", "estimate against", "export"))
]
LONG = "MobileNetV2 of keras.applications"
PAIRS = [
    (kind, IN_PROCESS[number * 7 % len(IN_PROCESS)])
    for number, kind in enumerate(KINDS)
    if kind != LONG
]


@pytest.mark.parametrize(("kind", "verb"), PAIRS)
def test_a_pair_works_or_is_refused_by_an_error_of_ours(kind, verb):
    result, _ = run_cell(kind, verb)
    assert not result.startswith(DEFECT), result


def test_the_pairs_hold_every_verb_that_needs_no_process_of_its_own():
    assert {verb for _, verb in PAIRS} == set(IN_PROCESS)


def test_the_page_counts_cells_and_lists_refusals_with_their_reasons():
    dynamic = 'Quantize("int8-dynamic")'
    cells = [
        ("tensorflow", "a", "Prune", "works", None),
        ("tensorflow", "b", "Prune", "No 'b_7' in '/tmp/xyz/m.keras'.", None),
        ("tensorflow", "b", dynamic, "works", 0.125),
        ("jax", "a", "Prune", "works", None),
        ("jax", "texts", "Prune", f"{OF_KERAS}TypeError: no texts", None),
    ]
    names = ("backend", "kind", "verb", "result", "error")
    page = table([dict(zip(names, cell, strict=True)) for cell in cells])
    assert "| Prune | 1 | 1 |" in page
    assert "| all | 2 | 1 |" in page
    assert "| b | Prune | No 'b' in 'm.keras'. |" in page
    assert "| b | int8-dynamic | 12.5% |" in page
    assert "On jax 1 of 2 cells" in page
    assert "Keras itself cannot run there: texts." in page
