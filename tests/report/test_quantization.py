"""The table of what quantized weights lost."""

from dataclasses import replace

import pytest
from rich.console import Console

from kerasmem.records import WeightChange
from kerasmem.records.weights import noise_table, worst_first

pytestmark = pytest.mark.one_backend

GOOD = WeightChange("a", "a/kernel", "quantize", True, "int8", 400, 100, 41.25)
BAD = replace(GOOD, weight="b/kernel", sqnr_db=17.5)
EXACT = replace(GOOD, weight="c/bias", changed=False, sqnr_db=None)


def printed(table):
    console = Console(width=120)
    with console.capture() as captured:
        console.print(table)
    return captured.get()


def test_the_worst_weight_comes_first_and_exact_ones_are_left_out():
    assert worst_first([GOOD, EXACT, BAD]) == [BAD, GOOD]
    text = printed(noise_table([GOOD, EXACT, BAD]))
    assert text.index("17.5 dB") < text.index("41.2 dB")
    assert "c/bias" not in text
    assert "(1 of 2)" in printed(noise_table([GOOD, BAD], most=1))


def test_the_title_says_what_was_done():
    assert noise_table([GOOD]).title.endswith("of quantized weights, the worst first")
    thinner = replace(BAD, technique="factorize", detail="two of rank 8")
    text = noise_table([GOOD, thinner]).title
    assert "ratio of factorized and quantized weights, the worst first" in text


def test_where_outputs_were_measured_they_say_which_is_the_worst():
    seen = [replace(GOOD, output_sqnr_db=12.0), replace(BAD, output_sqnr_db=30.5)]
    assert worst_first(seen) == seen
    text = printed(noise_table(seen))
    assert text.index("12.0 dB") < text.index("30.5 dB")
    assert "of outputs" in text
    assert "of outputs" not in printed(noise_table([GOOD, BAD]))
