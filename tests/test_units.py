"""Bytes, times and numbers as text, and text as bytes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kerasmem.errors import ConfigError
from kerasmem.units import format_bytes, format_ms, format_number, parse_bytes, to_mib

pytestmark = pytest.mark.one_backend


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (5_356_877, "5.11 MiB"),
        (12_884_901_888, "12.0 GiB"),
        (1024**2 - 1, "1.00 MiB"),
        (2 * 1024**5, "2,048 TiB"),
        (-1536, "-1.50 KiB"),
    ],
)
def test_sizes_have_three_digits_and_a_binary_prefix(size, text):
    assert format_bytes(size) == text


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (0.0, "0 ms"),
        (0.0000123, "0.0000123 ms"),
        (20.0, "20.0 ms"),
        (999.4, "999 ms"),
        (44.04, "44.0 ms"),
        (999.6, "1.00 s"),
        (1234.5, "1.23 s"),
        (3_600_000.0, "3,600 s"),
    ],
)
def test_times_have_three_digits_and_no_exponent(milliseconds, text):
    assert format_ms(milliseconds) == text


@settings(derandomize=True, max_examples=200, deadline=None)
@given(st.floats(1e-9, 1e15))
def test_a_number_read_back_is_off_by_less_than_one_percent(value):
    text = format_number(value)
    assert "e" not in text
    assert float(text.replace(",", "")) == pytest.approx(value, rel=0.0051)


@settings(derandomize=True, max_examples=200, deadline=None)
@given(st.integers(0, 2**50))
def test_a_size_read_back_is_off_by_less_than_one_percent(size):
    assert abs(parse_bytes(format_bytes(size).replace(",", "")) - size) <= size / 100


@pytest.mark.parametrize(
    ("text", "size"),
    [("8GiB", 8 * 1024**3), ("1.5 kib", 1536), (17, 17), ("0 B", 0), (" 17 ", 17)],
)
def test_a_size_is_a_number_of_bytes_or_a_text_with_a_unit(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    "bad", ["8G", "8GB", "-1GiB", "", None, 1.5, True, -1, 1 << 63, "9" * 400 + "B"]
)
def test_anything_else_is_an_error(bad):
    with pytest.raises(ConfigError, match=r"Received: size="):
        parse_bytes(bad)


def test_a_message_names_the_argument_of_the_caller():
    with pytest.raises(
        ConfigError, match="`limit` of fit must .* Received: limit='8G'"
    ):
        parse_bytes("8G", "fit", "limit")


def test_series_are_mib():
    assert to_mib(3 * 1024**2) == 3.0
