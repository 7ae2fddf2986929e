"""What the frameworks say when memory runs out, and what is read of it."""

import numpy as np
import pytest

from kerasmem.backends.exhaustion import (
    Refusal,
    complaint,
    is_out_of_memory,
    read_refusal,
)
from kerasmem.units import GIB

pytestmark = pytest.mark.one_backend

TF_PLACE = "on /job:localhost/replica:0/task:0/device:{} by allocator {}"
TF_GRAPH = (
    "Graph execution error:\n\nDetected at node sequential_1/wide_1/MatMul defined at "
    '(most recent call last):\n  File "train.py", line 9, in <module>\n\n'
    "OOM when allocating tensor with shape[4096,1024] and type float "
    + TF_PLACE.format("GPU:0", "GPU_0_bfc")
    + "\n\t [[{{node sequential_1/wide_1/MatMul}}]]\nHint: If you want to see a list "
    "of allocated tensors when OOM happens, add report_tensor_allocations_upon_oom to "
    "RunOptions.\n\t [[IteratorGetNext/_4]] [Op:__inference_multi_step_on_iterator_77]"
)
TF_EAGER = (
    "{{function_node __wrapped__Mul_device_/job:localhost/replica:0/task:0/device:"
    "CPU:0}} OOM when allocating tensor with shape[3,5] and type bfloat16 "
    + TF_PLACE.format("CPU:0", "bfc_cpu_allocator_for_gpu")
    + " [Op:Mul]"
)
TF_JIT = (
    "Out of memory while trying to allocate 8.63MiB. "
    "[Op:__inference_one_step_on_data_1234]"
)
TF_MAP = (
    "Graph execution error:\n\nDetected at node Fill defined at (most recent call last)"
    ":\n<stack traces unavailable>\nError in user-defined function passed to "
    "ParallelMapDatasetV2:3 transformation with iterator: Iterator::Root::Prefetch::"
    "ParallelMapV2: OOM when allocating tensor with shape[9000,1000] and type double "
    + TF_PLACE.format("CPU:0", "cpu")
    + "\n\t [[{{node Fill}}]]\n\t [[IteratorGetNext]] "
    "[Op:__inference_multi_step_on_iterator_88]"
)
TF_BATCH = (
    "Failed to allocate memory for the batch of component 0 [Op:IteratorGetNext] name: "
)
TF_GENERATOR = (
    "MemoryError: Unable to allocate 7.45 GiB for an array with shape (1000, 1000, 1000"
    ") and data type float64\nTraceback (most recent call last):\n\n\t [[{{node PyFunc"
    "}}]] [Op:IteratorGetNext] name: "
)
JAX = "RESOURCE_EXHAUSTED: Out of memory allocating 1099511627776 bytes."
JAX_GPU = (
    "RESOURCE_EXHAUSTED: Failed to allocate request for 4.00GiB (4294967296B) on "
    "device ordinal 1"
)
TORCH_CPU = (
    "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate "
    "memory: you tried to allocate 4398046511104 bytes. Error code 12 (Cannot allocate "
    "memory)"
)
TORCH_CUDA = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of "
    "139.81 GiB of which 1.50 GiB is free. Including non-PyTorch memory, this process "
    "has 138.30 GiB memory in use. Of the allocated memory 130.00 GiB is allocated by "
    "PyTorch, and 5.25 GiB is reserved by PyTorch but unallocated. If reserved but "
    "unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF="
    "expandable_segments:True to avoid fragmentation."
)
TORCH_ALLOWED = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
    "139.81 GiB of which 100.00 GiB is free. 8.00 GiB allowed; Of the allocated memory "
    "6.50 GiB is allocated by PyTorch, and 512.00 MiB is reserved by PyTorch but "
    "unallocated."
)
NUMPY = (
    "Unable to allocate 7.45 GiB for an array with shape (1000, 1000, 1000) and data "
    "type float64"
)

CASES = {
    TF_GRAPH: Refusal(
        requested_bytes=4096 * 1024 * 4,
        shape="[4096,1024]",
        dtype="float",
        operation="sequential_1/wide_1/MatMul",
        is_tensor=True,
        device="GPU:0",
    ),
    TF_EAGER: Refusal(
        requested_bytes=30,
        shape="[3,5]",
        dtype="bfloat16",
        operation="Mul",
        is_tensor=True,
        device="CPU:0",
    ),
    TF_JIT: Refusal(requested_bytes=round(8.63 * 2**20), operation="compiled step"),
    TF_MAP: Refusal(
        requested_bytes=9000 * 1000 * 8,
        shape="[9000,1000]",
        dtype="double",
        operation="Fill",
        is_tensor=True,
        device="CPU:0",
        in_pipeline=True,
    ),
    TF_BATCH: Refusal(operation="IteratorGetNext", in_pipeline=True),
    TF_GENERATOR: Refusal(
        requested_bytes=8 * 10**9,
        shape="[1000,1000,1000]",
        dtype="float64",
        operation="PyFunc",
        is_tensor=True,
        in_pipeline=True,
    ),
    JAX: Refusal(requested_bytes=2**40),
    JAX_GPU: Refusal(requested_bytes=4 * GIB, device="gpu:1"),
    TORCH_CPU: Refusal(requested_bytes=2**42, device="cpu", is_tensor=True),
    TORCH_CUDA: Refusal(
        requested_bytes=2 * GIB,
        device="cuda:1",
        is_tensor=True,
        limit_bytes=round(139.81 * GIB),
        in_use_bytes=130 * GIB,
        free_bytes=round(6.75 * GIB),
    ),
    TORCH_ALLOWED: Refusal(
        requested_bytes=2 * GIB,
        device="cuda:0",
        is_tensor=True,
        limit_bytes=8 * GIB,
        in_use_bytes=round(6.5 * GIB),
        free_bytes=round(1.5 * GIB),
    ),
    NUMPY: Refusal(
        requested_bytes=8 * 10**9,
        shape="[1000,1000,1000]",
        dtype="float64",
        is_tensor=True,
    ),
}


NAMES = (
    *("TF graph", "TF eager", "TF jit", "tf.data map", "tf.data batch", "generator"),
    *("JAX", "JAX GPU", "torch CPU", "torch CUDA", "torch, a part", "NumPy"),
)


@pytest.mark.parametrize("text", CASES, ids=NAMES)
def test_what_a_text_tells_is_read_to_the_byte(text):
    assert read_refusal(text) == CASES[text]
    assert is_out_of_memory(
        MemoryError(text) if text in (NUMPY,) else RuntimeError(text)
    ) or text in (TF_BATCH, TF_GENERATOR)


class ResourceExhaustedError(Exception):
    """Named as TensorFlow's, which is not installed everywhere."""


def test_tensorflows_class_is_enough():
    assert is_out_of_memory(ResourceExhaustedError(TF_BATCH))


def test_numpys_own_error_is_read():
    with pytest.raises(MemoryError) as caught:
        np.ones((2**23, 2**24))
    assert is_out_of_memory(caught.value)
    assert read_refusal(str(caught.value)).requested_bytes == 2**50


@pytest.mark.parametrize(
    "text",
    [
        "shapes (3,4) and (5,6) are not aligned",
        "CUDNN_STATUS_NOT_SUPPORTED",
        "INVALID_ARGUMENT: out of range",
    ],
)
def test_another_error_is_none(text):
    assert not is_out_of_memory(ValueError(text))


def test_a_text_that_tells_nothing_gives_nothing():
    assert read_refusal("CUDA error: out of memory") == Refusal()


def test_a_type_without_a_name_in_numpy_leaves_the_bytes_unknown():
    text = "OOM when allocating tensor with shape[8] and type variant"
    assert read_refusal(text).requested_bytes is None
    assert read_refusal(text).shape == "[8]"


def test_what_is_told_begins_where_it_is_about_memory():
    assert complaint(TF_GRAPH).startswith("OOM when allocating tensor with shape[4096")
    assert "Hint" not in complaint(TF_GRAPH)
    assert complaint(TORCH_CUDA) == TORCH_CUDA
    assert complaint("no word of it\nhere") == "no word of it here"
