"""The plan of a compiled step: recorded ones against an H200, rules, and refusals."""

import importlib.metadata
import os
from types import SimpleNamespace

import keras
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keras import layers

import kerasmem as km
from kerasmem.backends.xla.hlo import ConvolutionAxes, Instruction
from kerasmem.backends.xla.plan import Planned, PlannedBlock
from kerasmem.errors import ConfigError, InputError, ModelError
from kerasmem.extras import plans
from kerasmem.extras.plans import compiler, library_calls
from kerasmem.memory.allocator import BFCAllocator, PoolPolicy
from kerasmem.memory.batch_size.trial import USABLE
from kerasmem.memory.estimate import METHODS
from kerasmem.memory.estimate.device_specs import CARDS, description_of
from kerasmem.memory.estimate.pool import block_bytes
from kerasmem.records import MemoryEstimate
from tests.memory.estimate import recorded_plans
from tests.memory.estimate.test_measured import ROWS

pytestmark = pytest.mark.one_backend

MEASURED = {
    row["model"]: row
    for row in ROWS
    if row["jit"] and row["backend"] == "tensorflow" and row["batch"] == 64
}


@pytest.fixture(scope="module")
def answers():
    return {
        name: plans.answer(
            recorded_plans.request(name),
            recorded_plans.load(name),
            recorded_plans.BATCH[name],
        )
        for name in recorded_plans.NETWORKS
    }


@pytest.mark.parametrize("name", recorded_plans.NETWORKS)
def test_a_plan_comes_to_one_percent_of_what_an_h200_used(answers, name):
    estimate, measured = answers[name], MEASURED[name]["steady_bytes"]
    assert estimate.peak_bytes == pytest.approx(measured, rel=0.01)
    assert estimate.low_bytes <= measured <= estimate.high_bytes
    assert estimate.first_step_bytes == pytest.approx(
        MEASURED[name]["first_bytes"], rel=0.05
    )


def test_the_interval_is_tight_where_no_workspace_moves_the_peak(answers):
    width = {
        name: (one.high_bytes - one.low_bytes) / one.peak_bytes
        for name, one in answers.items()
    }
    assert width["transformer"] < 0.03
    assert width["cnn"] > 0.5
    # One side is the block that is split, the other the one that is given whole.
    mlp = answers["mlp"]
    assert mlp.high_bytes == pytest.approx(1.01 * mlp.peak_bytes, abs=1)


def test_the_parts_add_up_and_name_what_fills_the_peak(answers):
    for estimate in answers.values():
        assert sum(part.nbytes for part in estimate.parts) == estimate.peak_bytes
    sizes = answers["mlp"].by_category()
    weights = 4 * recorded_plans.NETWORKS["mlp"]().count_params()
    assert sizes["parameter"] == weights
    assert sizes["optimizer_state"] == 2 * weights + 12
    assert sizes["gradient"] == 4096 * 4096 * 4  # one at a time
    assert sizes["input"] == 64 * 784 * 4 + 256
    largest = answers["mlp"].buffers[0]
    assert (largest.layer, largest.shape) == ("dense_1", "[4096,4096]")
    assert largest.category == "gradient"


def test_the_buffers_of_a_plan_are_part_of_its_record_and_its_text(answers):
    estimate = answers["cnn"]
    sizes = [buffer.nbytes for buffer in estimate.buffers]
    assert sizes == sorted(sizes, reverse=True)
    assert MemoryEstimate.from_json(estimate.to_json()) == estimate
    assert "largest buffers:" in estimate.table()
    assert "float32[64,64,64,128] (activation)" in estimate.table()


@given(st.integers(1, 9 << 30))
def test_the_block_of_a_step_is_that_of_an_empty_pool(nbytes):
    pool = BFCAllocator(PoolPolicy(limit_bytes=1 << 40))
    pool.allocate(nbytes)
    assert block_bytes(nbytes) == pool.in_use_bytes


def buffer(address, size, begin, end):
    one = Instruction(begin, "fusion", "", "", (), (), {})
    return Planned(address, size, one, (), begin, end)


def test_shared_bytes_of_a_block_count_once():
    block = PlannedBlock(
        12, [buffer(0, 8, 0, 2), buffer(4, 4, 1, 3), buffer(8, 4, 2, 3)], 4
    )
    assert [block.occupied(position) for position in range(4)] == [8, 8, 12, 8]
    assert block.fullest() == 2
    assert [own for _, own in block.live(2)] == [8, 4]


def convolution(target, into, out, result, stride=1, dtype="float32", groups=1):
    """Return the instructions of a convolution of 8 images of 16 by 16."""
    image, kernel = f"[8,16,16,{into}]", f"[{out},3,3,{into}]"
    made = f"[8,{16 // stride},{16 // stride},{out}]"
    shapes = {"image": image, "kernel": kernel, "made": made}
    order = ("made", "kernel") if result == "image" else ("image", "kernel", "made")
    operands = [shapes[name] for name in order if name != result]
    axes = ConvolutionAxes((1, 2), 3, 0, (stride, stride), groups)
    values = [
        Instruction(n, "parameter", "", "", (), (), {(): (shape, dtype)})
        for n, shape in enumerate(operands)
    ]
    call = Instruction(
        number=9,
        opcode="custom-call",
        name="conv",
        label="",
        operands=(0, 1),
        called=(),
        shapes={(): ("[]", ""), (0,): (shapes[result], dtype), (1,): ("[0]", "uint8")},
        target=target,
        axes=axes,
    )
    return [*values, call]


WINOGRAD = 36 * (8 * 4 * 4 * (64 + 128) + 64 * 128) * 4
SPLITS = 15 * 128 * 3 * 3 * 64 * 4


@pytest.mark.parametrize(
    ("target", "result", "options", "expected"),
    [
        ("__cudnn$convForward", "made", {}, WINOGRAD),
        ("__cudnn$convBackwardInput", "image", {}, WINOGRAD),
        ("__cudnn$convBackwardFilter", "kernel", {}, max(SPLITS, WINOGRAD)),
        ("__cudnn$convBackwardFilter", "kernel", {"stride": 2}, SPLITS),
        ("__cudnn$convForward", "made", {"stride": 2}, 0),
        ("__cudnn$convForward", "made", {"dtype": "bfloat16"}, 0),
        ("__cudnn$convForward", "made", {"groups": 64}, 0),
    ],
)
def test_the_workspace_of_a_convolution(target, result, options, expected):
    (call,) = library_calls(convolution(target, 64, 128, result, **options))
    assert call.expected == expected
    assert call.most >= call.expected


def test_a_workspace_moves_the_peak_only_where_it_has_no_room():
    instructions = convolution("__cudnn$convForward", 64, 128, "made")
    block = PlannedBlock(WINOGRAD + 100, [buffer(0, 50, 0, 1), buffer(0, 100, 2, 2)], 3)
    moved = plans.PlanPeak(block, library_calls(instructions))
    assert moved.expected == WINOGRAD + 100
    full = PlannedBlock(100, [buffer(0, 100, 0, 1), buffer(0, 50, 2, 2)], 3)
    moved = plans.PlanPeak(full, library_calls(instructions))
    assert (moved.least, moved.expected) == (100, 50 + WINOGRAD)
    assert (moved.position, moved.workspace) == (2, WINOGRAD)


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("cudnn_rnn", "cuDNN runs this recurrence"),
        ("__cudnn$fmhaSoftmax", "cuDNN runs this attention"),
        ("my_library", "the memory of this library outside the plan is not known"),
    ],
)
def test_a_library_that_does_not_say_what_it_takes_is_refused(target, reason):
    call = Instruction(1, "custom-call", "layer/op", "", (), (), {}, target=target)
    with pytest.raises(ModelError, match=reason):
        library_calls([call])


def net(*inside):
    model = keras.Sequential([keras.Input((8, 4)), *inside, layers.Dense(2)])
    model.compile("adam", "mse")
    return model


@pytest.mark.parametrize(
    ("inside", "options", "message"),
    [
        ([], {"backend": "torch"}, "backend='tensorflow' or 'jax'. Received"),
        ([], {"jit_compile": False}, "jit_compile=True"),
        ([layers.LSTM(4)], {}, "use_cudnn=False. Received: lstm"),
        ([layers.GRU(4)], {"backend": "jax"}, "Received: gru"),
        ([], {"device": "gpu"}, "must be one of h200, h100"),
        ([], {"device": "h300"}, "one of gpu, cpu, h200"),
    ],
)
def test_what_has_no_plan_is_refused_with_the_reason(
    installed, inside, options, message
):
    options = {"device": "h200", "jit_compile": True, **options}
    with pytest.raises(ConfigError, match=message):
        km.estimate_memory(net(*inside), 2, method="plan", **options)


@pytest.fixture
def installed(monkeypatch):
    """Let distributions have versions, which a test may change; nothing else is."""
    found = {
        "jaxlib": "0.10.2",
        "jax-cuda12-plugin": "0.10.2",
        "nvidia-cuda-nvcc-cu12": "12.9",
    }

    def version(name):
        if name in found:
            return found[name]
        raise importlib.metadata.PackageNotFoundError(name)

    fake = SimpleNamespace(
        version=version, PackageNotFoundError=importlib.metadata.PackageNotFoundError
    )
    monkeypatch.setattr(compiler, "metadata", fake)
    return found


def test_the_installed_compiler_is_named(installed):
    assert compiler.check_installed() == "jax-cuda12-plugin 0.10.2"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"jax-cuda12-plugin": None}, r"pip install 'kerasmem\[plans\]', about 1 GB"),
        ({"nvidia-cuda-nvcc-cu12": None}, "Received: no nvidia-cuda-nvcc-cu12"),
        ({"jax-cuda12-plugin": "0.9.0"}, "pip install jax-cuda12-plugin==0.10.2"),
    ],
)
def test_without_the_compiler_it_is_said_what_to_install(installed, change, message):
    installed |= change
    for name in [name for name, version in installed.items() if version is None]:
        del installed[name]
    with pytest.raises(ConfigError, match=message):
        km.estimate_memory(net(), 2, method="plan", device="h200", jit_compile=True)


def test_other_methods_take_a_card_for_a_gpu():
    model = net()
    gpu = km.estimate_memory(model, 4, method="analytic")
    h100 = km.estimate_memory(model, 4, method="analytic", device="h100")
    assert h100.device == "h100"
    assert h100.parts == gpu.parts


def test_a_card_is_described_as_openxla_has_it():
    text = CARDS["h200"].description
    # Figures of openxla's h200.txtpb.
    for line in (
        "core_count: 132",
        "shared_memory_per_core: 233472",
        "shared_memory_per_block_optin: 232448",
        "l2_cache_size: 52428800",
        "threads_per_core_limit: 2048",
        "device_memory_size: 151397597184",
    ):
        assert line in text
    assert "shared_memory_per_block_optin: 166912" in CARDS["a100"].description
    assert "threads_per_core_limit: 1536" in CARDS["a6000"].description
    assert "fpus_per_core: 64" in CARDS["v100"].description


def test_a_card_may_be_described_by_a_file(tmp_path):
    path = tmp_path / "card.txtpb"
    path.write_text("gpu_device_info {}")
    assert description_of(str(path)) == "gpu_device_info {}"
    with pytest.raises(InputError, match="cannot be read"):
        description_of(str(tmp_path / "none.txtpb"))


def test_what_was_kept_is_read_back_whole_or_not_at_all(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    name = compiler.key("program", 1)
    assert compiler.read(name) is None
    compiler.write(name, b"plan" * 100)
    assert compiler.read(name) == b"plan" * 100
    path = tmp_path / "kerasmem" / "plans" / name
    path.write_bytes(path.read_bytes()[:-3])
    assert compiler.read(name) is None
    compiler.write(name, b"0" * 2**20)
    monkeypatch.setattr(compiler, "_MOST_BYTES", 2**20 - 1)
    assert compiler.read(name) is None
    path.unlink()
    os.mkfifo(path)
    assert compiler.read(name) is None
    path.unlink()
    (tmp_path / "other").write_bytes(b"of the user")
    path.symlink_to(tmp_path / "other")
    assert compiler.read(name) is None
    compiler.write(name, b"plan")
    assert (tmp_path / "other").read_bytes() == b"of the user"
    assert compiler.read(name) == b"plan"
    for number in range(70):
        compiler.write(compiler.key(number), b"")
    assert len(list(path.parent.iterdir())) == 64


def test_a_wide_interval_of_a_compiled_step_names_the_plan():
    estimate = km.estimate_memory(net(), 512, jit_compile=True)
    assert "method='plan'" in estimate.table()
    eager = km.estimate_memory(net(), 512, jit_compile=False)
    assert "method='plan'" not in eager.table()


def test_a_batch_is_chosen_by_plans_for_a_card(monkeypatch):
    def plan(request):
        asked.append((request.batch_size, request.card, request.jit_compile))
        return SimpleNamespace(peak_bytes=peak(request.batch_size))

    def peak(batch_size):
        return (40 << 20) + 2000 * batch_size

    asked = []
    monkeypatch.setitem(METHODS, "plan", plan)
    size = km.find_batch_size(net(), "48MiB", device="h100", largest=8192)
    most = max(n for n in range(8192) if peak(n) <= USABLE * size.limit_bytes)
    assert 0.9 * most <= size <= most
    assert {trial.batch_size for trial in size.trials} == {n for n, _, _ in asked}
    assert {(card, compiled) for _, card, compiled in asked} == {("h100", True)}


def test_without_a_limit_a_card_has_most_of_its_memory(monkeypatch):
    peak = 90 << 30
    monkeypatch.setitem(METHODS, "plan", lambda _: SimpleNamespace(peak_bytes=peak))
    with pytest.raises(ConfigError, match="No tested batch size fits"):
        km.find_batch_size(net(), device="h100")
    assert km.find_batch_size(net(), device="h200", largest=2) == 2
    with pytest.raises(ConfigError, match="without memory_limit must be one of"):
        km.find_batch_size(net(), device="card.txtpb")
