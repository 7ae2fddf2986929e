"""How the framework takes the cards: set before it starts, refused after, told."""

import os
import warnings
from types import SimpleNamespace

import keras
import pynvml
import pytest

from kerasmem import memory
from kerasmem.backends import current
from kerasmem.errors import ConfigError, KerasMemWarning
from kerasmem.memory import nvidia
from kerasmem.memory.batch_size.trial import set_limit
from kerasmem.processes import ON_THE_CPU, run_in_child
from kerasmem.records import CardStatus, DeviceStatus
from kerasmem.units import GIB

TOTAL = 16 * GIB
ON_CARDS = "CUDA_VISIBLE_DEVICES"
READ = (
    *("TF_GPU_ALLOCATOR", "TF_FORCE_GPU_ALLOW_GROWTH", ON_CARDS),
    *("TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC", "XLA_PYTHON_CLIENT_ALLOCATOR"),
    *("XLA_PYTHON_CLIENT_PREALLOCATE", "XLA_CLIENT_MEM_FRACTION"),
    "XLA_PYTHON_CLIENT_MEM_FRACTION",
)


@pytest.fixture
def driver(monkeypatch):
    """NVIDIA's driver: two cards of 16 GiB, 3 GiB in use, 2 of them this process's."""
    nvidia._handle.cache_clear()

    def by_index(index):
        if index >= 2:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return index

    def no_such_card(*uuid):
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)

    processes = [SimpleNamespace(pid=os.getpid(), usedGpuMemory=2 * GIB)]
    answers = {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetCount": lambda: 0,
        "nvmlDeviceGetHandleByIndex": by_index,
        "nvmlDeviceGetHandleByUUID": no_such_card,
        "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(
            used=3 * GIB, total=TOTAL
        ),
        "nvmlDeviceGetComputeRunningProcesses": lambda handle: processes,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, name, answer)
    yield processes
    nvidia._handle.cache_clear()


@pytest.fixture
def cards(driver, backend, monkeypatch):
    """Two cards, as the framework that runs sees them; it has not started."""
    monkeypatch.setattr(os, "environ", dict(os.environ))
    for name in READ:
        os.environ.pop(name, None)
    fake = FAKES[backend](monkeypatch)
    yield fake
    fake.restore()


class FakeTensorFlow:
    def __init__(self, monkeypatch):
        import tensorflow as tf

        gpus = [SimpleNamespace(name=f"/physical_device:GPU:{n}") for n in (0, 1)]
        self.visible, self.limits, self.handle = gpus, {}, None
        real_context = SimpleNamespace(context=lambda: self)
        monkeypatch.setattr("kerasmem.backends.tensorflow.device.context", real_context)
        config = {
            "list_physical_devices": lambda kind: gpus,
            "get_visible_devices": lambda kind: self.visible,
            "set_visible_devices": lambda gpus, kind: setattr(self, "visible", gpus),
            "get_logical_device_configuration": lambda gpu: self.limits.get(gpu.name),
            "set_logical_device_configuration": self.set_limit,
        }
        for name, answer in config.items():
            monkeypatch.setattr(tf.config, name, answer)
        monkeypatch.setattr(
            tf.config.experimental, "get_memory_growth", lambda gpu: None
        )

    @property
    def _context_handle(self):
        return self.handle

    def set_limit(self, gpu, parts):
        self.limits[gpu.name] = parts

    def start(self):
        self.handle = object()

    def restore(self):
        """Nothing of TensorFlow's own was changed."""


class FakeJax:
    def __init__(self, monkeypatch):
        import jax
        from jax._src import xla_bridge

        plugins = [SimpleNamespace(name="xla_cuda12")]
        place = "kerasmem.backends.jax.device"
        monkeypatch.setattr(f"{place}.entry_points", lambda group: plugins)
        monkeypatch.setattr(
            xla_bridge, "backends_are_initialized", lambda: self.started
        )
        self.started, self.config = False, jax.config
        config = SimpleNamespace(jax_platforms="", update=jax.config.update)
        devices = [
            SimpleNamespace(
                platform="gpu",
                id=n,
                local_hardware_id=n,
                memory_stats=lambda: {"bytes_limit": 12 * GIB},
            )
            for n in (0, 1)
        ]
        monkeypatch.setattr(
            f"{place}.jax",
            SimpleNamespace(config=config, local_devices=lambda: devices),
        )

    def start(self):
        self.started = True

    def restore(self):
        self.config.update("jax_cuda_visible_devices", "all")


class FakeTorch:
    def __init__(self, monkeypatch):
        import torch

        self.parts, self.started, self.asked = {}, False, None
        cuda = {
            "is_initialized": lambda: self.started,
            "init": self.start,
            "device_count": self.count,
            "get_allocator_backend": lambda: "native",
            "get_device_properties": lambda n: SimpleNamespace(total_memory=TOTAL),
            "set_per_process_memory_fraction": self.set_part,
            "get_per_process_memory_fraction": lambda n: self.parts.get(n, 1.0),
        }
        for name, answer in cuda.items():
            monkeypatch.setattr(torch.cuda, name, answer)

    def count(self):
        if self.asked is not None:
            return self.asked
        return len(os.environ.get(ON_CARDS, "0,1").split(","))

    def set_part(self, part, card):
        self.started = True
        self.parts[card] = part

    def start(self):
        self.started = True

    def restore(self):
        """Nothing of torch's own was changed."""


FAKES = {"tensorflow": FakeTensorFlow, "jax": FakeJax, "torch": FakeTorch}


def only(status):
    (found,) = status.cards
    return found


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "Expected: at least one setting.* Received: no settings"),
        ({"growth": True, "preallocate": True}, "growth=True, preallocate=True"),
        ({"growth": False, "preallocate": False}, "opposite values"),
        ({"growth": 1}, r"None, True, False\. Received: growth=1"),
        ({"limit": "8 elephants"}, "limit='8 elephants'"),
        ({"limit": 4096}, "at least 1 MiB. Received: limit=4096"),
        (
            {"devices": []},
            r"a list of at least one GPU index .* Received: devices=\[\]",
        ),
        ({"devices": [-1]}, r"Received: devices=\[-1\]\. To use no GPU, set CUDA_V"),
        ({"devices": 0}, "Received: devices=0"),
        ({"devices": [True]}, r"Received: devices=\[True\]"),
        ({"allocator": "malloc"}, "bfc, cuda_malloc_async.*allocator='malloc'"),
    ],
)
def test_settings_of_no_use_are_refused_wherever_it_runs(settings, message):
    with pytest.raises(ConfigError, match=message):
        memory.configure(**settings)


def configure_around_the_start(job):
    """Runs in the child: before the first tensor and after it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        before = memory.configure(limit="2GiB", growth=True)
    told = [str(w.message) for w in caught if w.category is KerasMemWarning]
    keras.ops.ones(3) + 1
    after = memory.status()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            memory.configure(limit="2GiB", devices=[0])
    except ConfigError as error:
        return {
            "told": told,
            "states": [before.started, after.started],
            "no": str(error),
        }
    return {"told": told, "states": [before.started, after.started], "no": None}


def test_without_a_gpu_it_warns_before_the_start_and_refuses_after_it(backend):
    got = run_in_child(
        f"{__name__}:configure_around_the_start",
        {},
        backend=backend,
        environment=ON_THE_CPU,
    )

    (told,) = got["told"]
    assert told.startswith("No GPU was found, so the settings have no effect")
    if backend == "torch":  # whose CUDA devices never start on such a machine
        assert (got["states"], got["no"]) == ([False, False], None)
    else:
        assert got["states"] == [False, True]
        assert got["no"].startswith(
            f"The backend '{backend}' has already initialized its devices"
        )
        assert (
            "Received: devices=(0,), limit=2147483648. Next: call kerasmem."
            in got["no"]
        )


def test_after_the_start_what_is_fixed_is_refused_with_what_to_do(cards, monkeypatch):
    cards.start()
    with pytest.raises(
        ConfigError, match=r"already.*devices=\(0,\).*top of the script"
    ):
        memory.configure(devices=[0])


def test_a_card_that_is_not_there_is_refused(cards):
    with pytest.raises(
        ConfigError, match=r"indices below 2\. Received: devices=\(0, 2\)"
    ):
        memory.configure(devices=[2, 0])


def test_a_limit_larger_than_the_card_is_refused(cards):
    with pytest.raises(
        ConfigError, match=r"at most 16.0 GiB\. Received: limit=17.0 GiB"
    ):
        memory.configure(limit="17GiB")


def test_a_limit_holds_for_every_card(cards, backend):
    before = dict(os.environ)
    status = memory.configure(limit="4GiB")

    assert [c.limit_bytes for c in status.cards] == [4 * GIB, 4 * GIB]
    if backend == "tensorflow":
        assert [part.memory_limit for (part,) in cards.limits.values()] == [4096, 4096]
    elif backend == "torch":
        assert cards.parts == {0: 0.25, 1: 0.25}
    else:
        assert {k: v for k, v in os.environ.items() if k not in before} == {
            "XLA_CLIENT_MEM_FRACTION": "0.25"
        }


def test_a_trial_of_a_batch_keeps_to_its_limit_on_a_gpu(cards, backend):
    if backend == "jax":  # whose trials are held to the limit by what they counted
        return
    set_limit(4 * GIB, "gpu")
    assert [c.limit_bytes for c in memory.status().cards] == [4 * GIB, 4 * GIB]


def test_one_card_of_two_is_used(cards, backend):
    status = memory.configure(devices=[1])
    # Torch counts anew among the cards that CUDA is shown.
    assert only(status).card == (0 if backend == "torch" else 1)
    assert os.environ.get(ON_CARDS) == ("1" if backend == "torch" else None)


def test_a_second_choice_of_cards_is_as_the_backend_allows(cards, backend):
    if backend == "torch":
        cards.asked = 2  # Keras asked CUDA while it was imported, which fixes them
        with pytest.raises(ConfigError, match=r"Set CUDA_VISIBLE_DEVICES=1 in the env"):
            memory.configure(devices=[1])
        assert ON_CARDS not in os.environ
    else:
        memory.configure(devices=[1])
        assert only(memory.configure(devices=[0])).card == 0


def test_growth_and_its_opposite_word(cards, backend):
    assert all(c.growth for c in memory.configure(growth=True).cards)
    if backend == "torch":
        with pytest.raises(ConfigError, match="cannot preallocate it.*growth=F"):
            memory.configure(preallocate=True)
    else:
        assert not any(c.growth for c in memory.configure(preallocate=True).cards)


def test_the_allocator_of_cuda_is_chosen_where_it_can_be(cards, backend):
    if backend == "torch":
        with pytest.raises(
            ConfigError, match="at import. Set PYTORCH_CUDA_ALLOC_CONF="
        ):
            memory.configure(allocator="cuda_malloc_async")
        with pytest.raises(
            ConfigError, match="no BFC allocator. Leave out `allocator`"
        ):
            memory.configure(allocator="bfc")
        return
    status = memory.configure(allocator="cuda_malloc_async", growth=False)
    assert [c.allocator for c in status.cards] == ["cuda_malloc_async"] * 2
    with pytest.raises(ConfigError, match=r"may grow past any limit.*limit=2147483648"):
        memory.configure(limit="2GiB")
    assert {c.allocator for c in memory.configure(allocator="bfc").cards} == {"bfc"}


def test_the_environment_has_what_the_framework_reads(cards, backend):
    if backend == "torch":
        os.environ[ON_CARDS] = "5, 7"
        memory.configure(devices=[1])
        expected = {ON_CARDS: "7"}
    elif backend == "jax":
        os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = "0.9"  # XLA refuses both names
        memory.configure(limit="8GiB", growth=True, allocator="bfc")
        expected = {
            "XLA_CLIENT_MEM_FRACTION": "0.5",
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
            "XLA_PYTHON_CLIENT_ALLOCATOR": "bfc",
        }
    else:
        memory.configure(preallocate=True, allocator="cuda_malloc_async")
        expected = {
            "TF_GPU_ALLOCATOR": "cuda_malloc_async",
            "TF_FORCE_GPU_ALLOW_GROWTH": "false",
            "TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC": "-1",
        }
    assert {name: os.environ[name] for name in READ if name in os.environ} == expected


@pytest.mark.parametrize("is_told", [True, False])
def test_the_status_tells_this_process_from_the_others(
    cards, driver, monkeypatch, is_told
):
    readings = (SimpleNamespace(name="card 1", current_bytes=GIB),)
    adapter = type(current())
    monkeypatch.setattr(adapter, "cuda_ordinals", lambda self: {"card 1": 1})
    monkeypatch.setattr(adapter, "device_memory", lambda self: readings)
    assert {c.others_bytes for c in memory.status().cards} == {3 * GIB}

    cards.start()
    if not is_told:  # processes of a container are numbered otherwise
        driver.clear()
    first, second = memory.status().cards

    assert (first.used_bytes, second.used_bytes) == (0, GIB)
    assert (second.card_used_bytes, second.card_total_bytes) == (3 * GIB, TOTAL)
    assert second.others_bytes == (GIB if is_told else None)


@pytest.mark.one_backend
def test_a_status_survives_json():
    found = CardStatus(1, GIB, True, "bfc", 5, 7, 9, None)
    status = DeviceStatus("jax", started=True, cards=(found,))
    assert DeviceStatus.from_json(status.to_json()) == status
