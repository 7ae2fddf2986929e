"""The laws of the 8-bit codes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from kerasmem.extras.optimizers import codes

ENTRIES = 32
NEAREST = np.float32(0.5)
few = settings(max_examples=25, deadline=None, derandomize=True)
steps = st.integers(0, 5000)


@st.composite
def blocks(draw, *, signed=True):
    """Draw blocks whose entries differ by many decades, zeros among them."""
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    largest = 10.0 ** draw(st.integers(-15, 15))
    x = largest * 10.0 ** rng.uniform(-8, 0, (3, ENTRIES))
    x[rng.random(x.shape) < 0.1] = 0
    if signed:
        x *= rng.choice([-1, 1], x.shape)
    return x.astype("float32")


def array(x):
    return ops.convert_to_numpy(x)


def offsets_of(step):
    return codes.rounding_offsets(step, ENTRIES)


def signed_trip(x, offsets=NEAREST):
    found, scales = codes.encode_signed(ops.convert_to_tensor(x), offsets)
    return array(codes.decode_signed(found, scales))


def root_trip(x, offsets=NEAREST):
    found, scales = codes.encode_root(ops.convert_to_tensor(x), offsets)
    return array(codes.decode_root(found, scales))


def largest(x):
    return np.abs(x).max(axis=-1, keepdims=True)


def signed_place(x, scale):
    return 127 * np.sign(x) * (np.abs(x, dtype="float64") / scale) ** 0.25


def root_place(x, scale):
    return 256 * np.sqrt(x.astype("float64") / scale)


@few
@given(blocks(), steps, steps)
def test_what_was_rounded_once_is_not_rounded_again(x, step, later):
    once, scales = codes.encode_signed(ops.convert_to_tensor(x), offsets_of(step))
    values = codes.decode_signed(once, scales)
    again, scales_again = codes.encode_signed(values, offsets_of(later))

    np.testing.assert_array_equal(array(again), array(once))
    np.testing.assert_allclose(array(scales_again), array(scales), rtol=1e-6)


@few
@given(blocks(signed=False), steps, steps)
def test_a_root_that_was_rounded_once_is_not_rounded_again(x, step, later):
    once, scales = codes.encode_root(ops.convert_to_tensor(x), offsets_of(step))
    values = codes.decode_root(once, scales)
    again, scales_again = codes.encode_root(values, offsets_of(later))

    np.testing.assert_array_equal(array(again), array(once))
    np.testing.assert_allclose(array(scales_again), array(scales), rtol=1e-6)


@few
@given(blocks(), steps)
def test_no_entry_moves_by_a_step_of_the_code(x, step):
    scale = largest(x) + 1e-45

    moved = signed_place(signed_trip(x, offsets_of(step)), scale) - (
        signed_place(x, scale)
    )
    assert np.abs(moved).max() < 1

    nearest = signed_place(signed_trip(x), scale) - signed_place(x, scale)
    assert np.abs(nearest).max() < 0.501


@few
@given(blocks(signed=False), steps)
def test_no_root_moves_by_a_step_of_the_code_except_up_from_zero(x, step):
    scale = largest(x) + 1e-45
    place = root_place(x, scale)

    moved = root_place(root_trip(x, offsets_of(step)), scale) - place
    assert np.abs(moved[place >= 1]).max(initial=0) < 1
    assert ((moved >= 0) & (moved <= 1))[place < 0.9].all()


@pytest.mark.parametrize(
    ("decade", "signed", "root"),
    [(0, 0.029, 0.013), (1, 0.051, 0.041), (2, 0.092, 0.13), (3, 0.17, 0.43)],
)
def test_the_error_grows_gently_from_decade_to_decade(decade, signed, root):
    x = np.logspace(-decade - 1, -decade, 1001, dtype="float32")
    with_largest = np.append(x, np.float32(1))[None]

    for trip, bound in ((signed_trip, signed), (root_trip, root)):
        error = np.abs(trip(with_largest)[0, :-1] - x) / x
        assert 0.8 * bound < error.max() < bound


def paper_table():
    """Return the positive values of the signed code of Dettmers et al. (2022)."""
    values = [1.0]
    for decade in range(7):
        edges = np.linspace(0.1, 1, 2**decade + 1)
        values += list(10.0 ** (decade - 6) * (edges[:-1] + edges[1:]) / 2)
    return np.sort(values)


def test_moments_of_any_size_err_less_than_in_the_code_of_the_paper():
    table = paper_table()
    assert len(table) == 128
    x = np.append(np.logspace(-6, 0, 60001, dtype="float32"), np.float32(1))
    nearest = np.searchsorted((table[1:] + table[:-1]) / 2, x)

    ours = np.abs(signed_trip(x[None])[0] - x) / x
    theirs = np.abs(table[nearest] - x) / x

    for decade in range(6):
        here = (x > 10.0 ** (-decade - 1)) & (x <= 10.0**-decade)
        assert ours[here].mean() < theirs[here].mean()
        assert ours[here].max() < 0.8 * theirs[here].max()


@few
@given(blocks(), steps)
def test_zeros_stay_zero(x, step):
    assert (signed_trip(x, offsets_of(step))[x == 0] == 0).all()


def test_a_block_of_zeros_stays_so_whatever_the_others_hold():
    x = np.zeros((2, ENTRIES), "float32")
    x[1] = 3.0
    for trip in (signed_trip, root_trip):
        assert (trip(x)[0] == 0).all()


@pytest.mark.parametrize("size", [1e-38, 1e-33, 1e-28])
def test_blocks_of_next_to_nothing_are_finite(size):
    x = np.full((1, ENTRIES), size, "float32")
    for trip in (signed_trip, root_trip):
        assert np.abs(trip(x)).max() <= 1.001 * size


@few
@given(blocks())
def test_order_is_kept(x):
    x = np.sort(x, axis=-1)
    assert (np.diff(signed_trip(x)) >= 0).all()
    x = np.sort(np.abs(x), axis=-1)
    assert (np.diff(root_trip(x)) >= 0).all()


@few
@given(blocks())
def test_the_sign_is_kept_and_means_nothing_else(x):
    found, mirrored = signed_trip(x), -signed_trip(-x)
    assert (found * x >= 0).all()
    assert (mirrored * x >= 0).all()
    # Halfway between two codes rounding in float32 decides.
    from_half = np.abs(signed_place(np.abs(x), largest(x)) % 1 - 0.5)
    clear = from_half > 1e-4
    np.testing.assert_array_equal(found[clear], mirrored[clear])


@few
@given(blocks(signed=False))
def test_no_root_becomes_less_than_a_65536th_of_the_largest(x):
    floor = largest(x) / 65536
    assert (root_trip(x) >= 0.999 * floor).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_spoils_no_other_block(bad):
    rng = np.random.default_rng(0)
    x = np.abs(rng.normal(size=(3, ENTRIES))).astype("float32")
    clean = {trip: trip(x) for trip in (signed_trip, root_trip)}
    x[1, 5] = bad
    for trip, expected in clean.items():
        found = trip(x)
        np.testing.assert_array_equal(found[[0, 2]], expected[[0, 2]])


def test_every_place_takes_every_offset_once_in_1024_steps():
    all_offsets = np.stack([array(offsets_of(step)) for step in range(1024)])

    assert (np.sort(all_offsets, axis=0) == np.sort(all_offsets[:, :1], axis=0)).all()
    assert len(np.unique(all_offsets[:, 0])) == 1024
    assert 0 < all_offsets.min() < 0.001
    assert 0.999 < all_offsets.max() < 1
    # Any 16 steps in a row, and any 16 places of a step, are spread over the range.
    for rows in (all_offsets[:, 0], array(codes.rounding_offsets(3, 256))):
        for start in range(0, len(rows) - 16, 7):
            assert np.diff(np.sort(rows[start : start + 16])).max() < 0.15
    np.testing.assert_array_equal(array(offsets_of(1024 * 3 + 5)), all_offsets[5])


def test_over_the_steps_rounding_up_and_down_cancel():
    x = np.linspace(-1, 1, ENTRIES, dtype="float32")[None]
    scale = largest(x)
    places = [
        signed_place(signed_trip(x, offsets_of(step)), scale) for step in range(1024)
    ]
    np.testing.assert_allclose(np.mean(places, 0), signed_place(x, scale), atol=0.002)
