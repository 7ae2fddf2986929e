"""Arrays in pieces are read by stock h5py to the bit, and are the same bytes always."""

import zlib

import h5py
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from kerasmem.errors import OutputError
from kerasmem.files import chunks, deflating, weights
from kerasmem.files.threads import Threads

pytestmark = pytest.mark.one_backend

SHAPES = arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=9)
TYPES = st.sampled_from(
    ["bool", "i1", "u1", "<i2", "<f2", "<i4", ">f4", "<f4", "<i8", "<f8", "bfloat16"]
)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return tmp_path_factory.mktemp("chunks") / "a.h5"


def as_array(data, shape, dtype):
    if dtype == "bfloat16":
        return data.draw(arrays.arrays("<u2", shape)).view(ml_dtypes.bfloat16)
    return data.draw(arrays.arrays(dtype, shape))


def written(file, array, blocks, name="w"):
    """Write an array, read it by h5py, and return the bytes of the file."""
    form = (array.shape, array.dtype)
    with h5py.File(file, "w") as h5, Threads() as threads:
        made = chunks.write_array(threads, h5, name, form, blocks)
    with h5py.File(file) as h5:
        assert chunks.is_as_written(h5[name], made)
        found = np.asarray(h5[name][()], h5[name].dtype)
        assert (h5[name].attrs.get("dtype") == "bfloat16") == (
            array.dtype == ml_dtypes.bfloat16
        )
    assert found.shape == array.shape
    assert found.tobytes() == array.tobytes()
    return file.read_bytes()


@given(st.data(), SHAPES, TYPES)
@settings(max_examples=150, deadline=None)
def test_any_array_is_read_to_the_bit_however_it_was_cut(file, data, shape, dtype):
    least, piece = data.draw(st.sampled_from([(1 << 9, 1 << 20), (0, 40), (0, 8)]))
    array = as_array(data, shape, dtype)
    flat = array.reshape(-1)
    cuts = sorted(data.draw(st.lists(st.integers(0, flat.size), max_size=5)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "_LEAST_BYTES", max(least, 1))
        patch.setattr(chunks, "_PIECE_BYTES", piece)
        whole = written(file, array, [array])
        assert written(file, array, np.split(flat, cuts)) == whole


@pytest.mark.parametrize("sparsity", [0.0, 0.8, 1.0])
@pytest.mark.parametrize("dtype", ["<f4", "<f2", "bfloat16", "i1", "<i8"])
@pytest.mark.parametrize("shape", [(3, 700, 1111), (2_000_003,), (2, 1, 600_001)])
def test_large_arrays_are_read_to_the_bit(shape, dtype, sparsity, tmp_path):
    random = np.random.default_rng(0)
    values = 40 * random.normal(size=shape)
    values[random.random(shape) < sparsity] = 0
    array = values.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    whole = written(tmp_path / "a.h5", array, [array])
    rows = np.array_split(array, 5)
    assert written(tmp_path / "b.h5", array, rows) == whole
    assert len(whole) < 1.01 * array.nbytes + 20_000
    if sparsity == 1.0:
        assert len(whole) < 20_000


def test_arrays_that_do_not_lie_in_their_order_are_read_as_they_are(tmp_path):
    array = np.random.default_rng(0).normal(size=(600, 900)).astype("float32")
    for view in (array.T, array[::2, ::-1], np.asfortranarray(array)):
        written(tmp_path / "a.h5", view, [view])


@pytest.mark.parametrize("shape", [(), (0, 3), (2, 700_000), (3, 5, 90_000)])
def test_blocks_of_a_stored_array_are_small_runs_of_it(shape, tmp_path):
    array = np.arange(np.prod(shape, dtype=int), dtype="f4").reshape(shape)
    with h5py.File(tmp_path / "a.h5", "w") as h5:
        h5["w"] = array
        blocks = list(chunks.blocks_of(h5["w"]))
    assert max(block.nbytes for block in blocks) <= 1 << 20
    found = np.concatenate([block.reshape(-1) for block in blocks])
    np.testing.assert_array_equal(found, array.reshape(-1))


@pytest.mark.parametrize("count", [0, 999, 1001])
def test_blocks_of_another_length_are_an_error(count, tmp_path):
    form = ((1000,), np.dtype("f4"))
    with (
        h5py.File(tmp_path / "a.h5", "w") as h5,
        pytest.raises(
            OutputError, match="length of the weight 'w' does not match its shape"
        ),
        Threads() as threads,
    ):
        chunks.write_array(threads, h5, "w", form, [np.ones(count, "f4")])


@pytest.mark.parametrize("where", [100, 5_000, 200_000, -3])
def test_a_bit_that_flips_in_the_file_is_told(where, tmp_path):
    array = np.random.default_rng(0).normal(size=(700, 500)).astype("float32")
    form = (array.shape, array.dtype)
    with h5py.File(tmp_path / "a.h5", "w") as h5, Threads() as threads:
        made = chunks.write_array(threads, h5, "w", form, [array])
    with h5py.File(tmp_path / "a.h5", "r+") as h5:
        place = (0, 0)
        _, content = h5["w"].id.read_direct_chunk(place)
        content = bytearray(content)
        content[where] ^= 4
        h5["w"].id.write_direct_chunk(place, bytes(content))
    with (
        h5py.File(tmp_path / "a.h5") as h5,
        pytest.raises(OutputError, match="stored value of the weight 'w' differs"),
    ):
        weights.check_weights(h5, {"w": made}, "deflate")


@given(
    st.lists(st.sampled_from(["random", "zeros", "few"]), min_size=1, max_size=8),
    st.integers(1, 70_000),
    st.integers(0, 2**32 - 1),
)
@settings(max_examples=40, deadline=None)
def test_a_stream_is_what_zlib_reads_and_smaller_than_its_piece(planes, size, seed):
    random = np.random.default_rng(seed)
    most = {"random": 256, "zeros": 1, "few": 7}
    bytes_ = [random.integers(0, most[kind], size).astype("u1") for kind in planes]
    piece = np.stack(bytes_, axis=1).reshape(-1)
    stream = deflating.deflated(piece, len(planes))
    if stream is None:
        return
    assert len(stream) < piece.size
    assert zlib.decompress(stream) == b"".join(plane.tobytes() for plane in bytes_)


def test_an_error_on_a_thread_is_raised_and_the_rest_is_not_begun():
    used = []

    def fail():
        raise RuntimeError("full")

    with pytest.raises(RuntimeError, match="full"), Threads(ahead=2) as threads:
        threads.run(fail, then=used.append)
        for number in range(20):
            threads.run(abs, number, then=used.append)
    assert not used
