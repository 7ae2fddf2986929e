"""Arrays come back to the bit, near their entropy, or damage is told."""

import base64
import zlib

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from kerasmem.errors import ModelFileError
from kerasmem.files.coding import decode, encode, positions
from kerasmem.files.coding.stream import StreamReader, StreamWriter

pytestmark = pytest.mark.one_backend

SHAPES = arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=9)
TYPES = st.sampled_from(
    ["bool", "i1", "u1", "<i2", "<f2", "<i4", "<u4", "<f4", ">f4", "<i8", "<f8"]
)


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


@given(st.data(), SHAPES, TYPES)
@settings(max_examples=150)
def test_any_array_comes_back_to_the_bit(data, shape, dtype):
    """With all NaNs, infinities and signs of zero."""
    array = data.draw(arrays.arrays(dtype, shape))
    assert same(decode(encode(array)), array)


@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([(3, 3, 16, 24), (700, 90), (5000,), (1, 40000)]),
    st.sampled_from([0.0, 0.5, 0.9, 0.999, 1.0]),
    st.sampled_from([1, 2, 16, 255, 5000, None]),
)
@settings(max_examples=20)
def test_weights_of_every_kind_come_back_to_the_bit(seed, shape, sparsity, different):
    random = np.random.default_rng(seed)
    array = random.normal(size=shape)
    if different is not None:
        array = random.normal(size=different)[random.integers(0, different, shape)]
    array[random.random(shape) < sparsity] = 0.0
    for dtype in ("float32", "float16"):
        assert same(decode(encode(array.astype(dtype))), array.astype(dtype))
    codes = np.clip(np.round(60 * array), -127, 127).astype("int8")
    assert same(decode(encode(codes)), codes)


def test_views_and_other_orders_of_memory_are_read_as_they_are():
    array = np.arange(600, dtype="float32").reshape(20, 30)
    for view in (array.T, array[::2, ::-1], np.asfortranarray(array)):
        assert same(decode(encode(view)), np.ascontiguousarray(view))


def test_bfloat16_comes_back_as_two_bytes_an_entry():
    array = np.random.default_rng(0).normal(size=(40, 50)).astype(ml_dtypes.bfloat16)
    assert decode(encode(array)).tobytes() == array.tobytes()


OLDER = (
    "S01DMUdt+eUDPGY0AhQeAAIFAAAAAAAAAD8AAMA/AAAgQAAAYEAQeNozMTZm9mc2ZgYABfwBJgRikrUV"
    "AH8OAQAG3hMAOToGAfuJZts/ruEyJRR0AB7nTYITAquAdNFvJqUmn6022tJ0NGiMseRErSCvw559eOdd"
    "rPvk0Uc0ZDSxGTEWsqaRiwBoxC8Dc2Upaz+/GubZah8HbtM="
)
"""What `encode` once wrote, before eight positions were one symbol."""


def test_what_was_written_earlier_is_read():
    values = np.arange(600) * 7919 % 1009
    full = (values % 5 == 0).reshape(20, 30)
    array = np.where(full, 0.5 + values.reshape(20, 30) % 4, 0).astype("float32")
    assert same(decode(base64.b64decode(OLDER)), array)


@given(st.integers(0, 1 << 14))
def test_the_frequencies_of_eight_flags_are_the_products_of_theirs(often):
    table = positions.of_eight(often).table[0]
    assert table.sum() == 1 << 14
    assert table.min() >= 1
    share = often / (1 << 14)
    number = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1)
    expected = share**number * (1 - share) ** (8 - number) * (1 << 14)
    rest = np.arange(256) != table.argmax()  # the largest makes up for the others
    assert (abs(np.maximum(expected, 1) - table)[rest] <= 1).all()


@pytest.mark.parametrize("size", [9, 4096, 300_001])
def test_positions_that_are_full_alike_are_eight_a_symbol(size):
    full = np.random.default_rng(9).random(size) < 0.2
    out = StreamWriter()
    positions.plan(full, (size,)).write(out)
    content = out.content()
    assert content[0] == 0
    source = StreamReader(content)
    np.testing.assert_array_equal(positions.read((size,), source), full)
    source.finish()


def entropy_bits(shares):
    shares = np.asarray(shares)[np.asarray(shares) > 0]
    return -(shares * np.log2(shares)).sum()


@pytest.mark.parametrize("sparsity", [0.5, 0.8, 0.95, 0.99])
@pytest.mark.parametrize("different", [4, 16, 200])
def test_a_pruned_weight_of_few_values_is_within_2_percent_of_its_entropy(
    sparsity, different
):
    random = np.random.default_rng(1)
    values = np.sort(random.normal(size=different)).astype("float32")
    weight = values[random.integers(0, different, (600, 500))]
    weight[random.random(weight.shape) < sparsity] = 0.0
    share = np.mean(weight != 0)
    bits = entropy_bits([share, 1 - share]) + share * np.log2(different)
    bound = weight.size * bits / 8
    # Beside it come the values, their frequencies, and what tells rows and columns.
    assert bound < len(encode(weight)) < 1.02 * bound + 8 * different + 120


def test_symbols_that_come_unevenly_take_their_entropy():
    random = np.random.default_rng(2)
    shares = np.array([0.6, 0.2, 0.1, 0.05, 0.05])
    weight = random.choice(5, size=(400, 500), p=shares).astype("int8")
    bound = weight.size * entropy_bits(np.bincount(weight.ravel()) / weight.size) / 8
    assert len(encode(weight)) < 1.01 * bound + 60


def test_rows_that_are_full_unevenly_are_worth_it():
    random = np.random.default_rng(3)
    expected = 0.2 * random.random(784) ** 4
    full = random.random((784, 300)) < expected[:, None]
    weight = np.where(full, 1.0, 0.0).astype("float32")
    share = full.mean()
    alike = weight.size * entropy_bits([share, 1 - share]) / 8
    known = 300 * sum(entropy_bits([p, 1 - p]) for p in expected) / 8
    # Some 4 bits for each row tell its class.
    assert known < len(encode(weight)) < min(1.02 * known + 784 / 2 + 150, 0.9 * alike)


def test_floats_lose_their_exponents():
    weight = np.random.default_rng(4).normal(size=(300, 400)).astype("float32")
    # Sign and exponent of a normal number have some 2.6 bits of entropy, of 9.
    assert len(encode(weight)) < 0.84 * weight.nbytes


def test_a_constant_takes_next_to_nothing():
    assert len(encode(np.full((3000, 3000), 0.5, "float32"))) < 40


def test_bits_that_flip_are_told():
    random = np.random.default_rng(5)
    code = encode(np.where(random.random((50, 60)) < 0.9, 0, random.normal(size=60)))
    for place in range(len(code)):
        flipped = bytearray(code)
        flipped[place] ^= 1 << place % 8
        with pytest.raises(ModelFileError, match="damaged"):
            decode(bytes(flipped))


def test_a_code_that_ends_early_is_told():
    code = encode(np.random.default_rng(6).normal(size=(20, 30)).astype("float32"))
    for length in range(0, len(code), 7):
        with pytest.raises(ModelFileError, match="damaged"):
            decode(code[:length])


def with_checksum(content):
    return b"KMC1" + zlib.crc32(content).to_bytes(4, "little") + bytes(content)


def decoded_or_told(content):
    try:
        return decode(with_checksum(content))
    except ModelFileError:
        return None


@given(st.binary(max_size=300))
def test_what_was_never_written_is_an_error_even_if_its_checksum_fits(content):
    decoded_or_told(content)


@pytest.mark.parametrize("different", [3, 5000])
def test_what_was_forged_is_an_array_or_an_error(different):
    random = np.random.default_rng(7)
    weight = random.normal(size=different).astype("float32")[
        random.integers(0, different, (40, 50))
    ]
    weight[random.random(weight.shape) < 0.9] = 0.0
    content = encode(weight)[8:]
    for _ in range(200):
        forged = bytearray(content)
        forged[random.integers(min(len(content), 200))] = random.integers(256)
        found = decoded_or_told(forged)
        assert found is None or found.nbytes <= 1 << 32


def forged(dtype, shape, *rest):
    """Return content with a checksum that fits."""
    out = StreamWriter()
    out.block(dtype)
    for number in (len(shape), *shape, *rest):
        out.number(number)
    out.raw(bytes(8))
    return with_checksum(out.content())


@pytest.mark.parametrize(
    ("dtype", "shape", "message"),
    [
        (b"<f4", (1 << 20, 1 << 20), "are damaged: invalid size"),
        (b"<f4", (0, 1 << 40), "are damaged: invalid size"),
        (b"|u1", (1 << 40,), "are damaged: invalid size"),
        (b"<f4", (1,) * 40, "are damaged: invalid size"),
        (b"|O", (3,), "are damaged: unknown type"),
        (b"<c8", (3,), "are damaged: unknown type"),
        (b"<U2", (3,), "are damaged: unknown type"),
        (b"a", (3,), "are damaged: unknown type"),
    ],
)
def test_what_no_weight_is_is_refused_before_there_is_room_for_it(
    dtype, shape, message
):
    with pytest.raises(ModelFileError, match=message):
        decode(forged(dtype, shape, 2))


def test_a_code_that_would_take_forever_is_refused():
    """One lane for a million symbols, each of no bits at all."""
    out = StreamWriter()
    out.block(b"|u1")
    for number in (1, 1 << 22, 0, 2, 1):  # an axis, its length, all follow, few, one
        out.number(number)
    out.raw(b"\7")
    out.block(zlib.compress(b""))  # the frequencies of all symbols but the last
    out.number(1)  # lane
    out.block((1 << 16).to_bytes(4, "little"))
    with pytest.raises(ModelFileError, match="are damaged: invalid number"):
        decode(with_checksum(out.content()))


@pytest.mark.parametrize("columns", [1024, 1000])
def test_zeros_in_some_columns_are_seen(columns):
    weight = np.random.default_rng(8).normal(size=(512, columns)).astype("float32")
    weight[:, 1::2] = 0.0
    assert len(encode(weight)) < 0.45 * weight.nbytes
