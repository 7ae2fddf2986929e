"""Bytes a device, against what each of several virtual devices really holds."""

import json
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from keras import layers

import kerasmem as km
from kerasmem import backends
from kerasmem.errors import ConfigError
from kerasmem.extras import plans
from kerasmem.memory.estimate import METHODS
from kerasmem.memory.estimate.estimate import checked_request
from kerasmem.memory.estimate.sharding import Sharding
from kerasmem.memory.estimate.variables import persistent_parts
from kerasmem.processes import ON_THE_CPU, run_in_child
from tests.two_devices import split_cpu

pytestmark = pytest.mark.one_backend

COUNTS = (2, 4)
FOUR = {**ON_THE_CPU, "XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
BATCH = 64
STATE = ("parameter", "optimizer_state")


def net():
    inputs = keras.Input((32,), name="x")
    x = layers.Dense(256, activation="relu", name="up")(inputs)
    x = layers.Dense(64, name="down")(x)
    return keras.Model(inputs, layers.Dense(7, name="head")(x))


def estimated():
    """Return a net with the slots of its optimizer, and its estimate from before."""
    model = net()
    model.compile("adam", "mse")
    estimate = km.estimate_memory(model, BATCH, method="analytic")
    model.optimizer.build(model.trainable_variables)
    return model, estimate


def figures(estimate, held):
    sizes = estimate.by_category()
    return {
        "held": sorted(held.values()),
        "estimated": sum(sizes[category] for category in STATE),
        "activations": sizes.get("activation", 0),
        "devices": estimate.devices,
        "batch": estimate.batch_size,
        "jit": estimate.jit_compile,
    }


def distributions(count):
    """Return by name the distributions over the first devices."""
    made = keras.distribution
    names = made.list_devices()[:count]
    found = {"DataParallel": made.DataParallel(devices=names)}
    for replicas in (1, 2):
        shape = (replicas, count // replicas)
        layouts = made.LayoutMap(made.DeviceMesh(shape, ["batch", "model"], names))
        layouts["up/kernel"] = (None, "model")
        layouts["up/bias"] = ("model",)
        layouts["down/kernel"] = ("model", None)
        found[f"ModelParallel by {replicas}"] = made.ModelParallel(
            layout_map=layouts, batch_dim_name="batch"
        )
    return found


def by_jax(_):
    """Return what is held and what was estimated; in a child with four devices."""
    found = {}
    for count in COUNTS:
        for name, distribution in distributions(count).items():
            with distribution.scope():
                model, estimate = estimated()
                x, y = (np.zeros((BATCH, size), "float32") for size in (32, 7))
                model.fit(x, y, batch_size=BATCH, verbose=0)
                held = Counter()
                for v in (*model.weights, *model.optimizer.variables):
                    for shard in v.value.addressable_shards:
                        held[shard.device.id] += shard.data.nbytes
            found[f"{name} on {count}"] = figures(estimate, held)
    return found


def by_tensorflow(_):
    """Return the same of replicas."""
    import tensorflow as tf

    split_cpu(4)
    found = {}
    for count in COUNTS:
        strategy = tf.distribute.MirroredStrategy([f"CPU:{n}" for n in range(count)])
        with strategy.scope():
            model, estimate = estimated()
            held = Counter()
            for v in (*model.weights, *model.optimizer.variables):
                for copy in strategy.experimental_local_results(v.value):
                    held[copy.device] += copy.numpy().nbytes
        found[f"MirroredStrategy on {count}"] = figures(estimate, held)
    return found


# README's line installs no JAX.
@pytest.mark.parametrize(
    "backend", [pytest.param("jax", marks=pytest.mark.slow), "tensorflow"]
)
def test_a_device_holds_what_is_estimated(backend):
    task = f"{__name__}:by_{backend}"
    cases = run_in_child(task, {}, backend=backend, environment=FOUR)
    alone = km.estimate_memory(
        net(), BATCH, optimizer="adam", method="analytic", backend=backend
    )
    whole = sum(alone.by_category()[category] for category in STATE)
    for name, case in cases.items():
        count = int(name[-1])
        assert (case["devices"], case["batch"]) == (count, BATCH), name
        assert len(case["held"]) == count
        assert case["held"][0] == case["held"][-1], name
        assert case["estimated"] == pytest.approx(case["held"][0], rel=0.05), name
        if "Model" in name:
            split = count // int(name.split()[2])
            of_kernels = 3 * 4 * (32 * 256 + 256 + 256 * 64)
            assert case["estimated"] == whole - of_kernels * (1 - 1 / split)
        else:
            assert case["estimated"] == whole


class Halves:
    """A layout over two devices, along the first axis."""

    def shard_shape(self, shape):
        if shape[0] % 2:
            raise ValueError(f"{shape[0]} is odd.")
        return (shape[0] // 2, *shape[1:])


@pytest.fixture
def shared(monkeypatch):
    """Have the running backend train on several devices; returns what sets them."""

    def share(devices, replicas, layout=None):
        running = backends.current()
        monkeypatch.setattr(running, "sharing_of", lambda _: (devices, replicas))
        monkeypatch.setattr(running, "layout_of", lambda _: layout)

    return share


def asked(batch_size, **options):
    return km.estimate_memory(net(), batch_size, optimizer="adam", **options)


def test_a_replica_is_estimated_with_its_part_of_the_batch(shared):
    part, whole = (
        asked(size, method="analytic", jit_compile=False) for size in (8, 30)
    )
    shared(4, 4)
    found = asked(30, method="analytic", jit_compile=False)
    assert found.parts == part.parts != whole.parts
    assert (found.batch_size, found.devices, whole.devices) == (30, 4, 1)
    assert "batch of 30, tensorflow (not compiled), each of 4 devices (gpu)" in (
        found.table()
    )


def test_what_is_split_is_counted_in_parts(shared):
    shared(2, 1, Halves())
    with pytest.raises(ConfigError, match=r"'head/bias' of shape \(7,\), 7 is odd"):
        asked(8, method="analytic")
    even = keras.Sequential([keras.Input((6,)), layers.Dense(4)])
    found = km.estimate_memory(even, 8, optimizer="adam", method="analytic")
    assert found.by_category()["parameter"] == 4 * (6 * 4 + 4) // 2
    assert found.by_category()["optimizer_state"] == 4 * (6 * 4 + 4) + 12
    with pytest.raises(ConfigError, match="sharded over 2 devices. Next: pass method="):
        km.estimate_memory(even, 8, optimizer="adam", method="traced")


def test_keras_compiles_no_replicas_by_itself(shared):
    assert asked(8, method="analytic").jit_compile
    shared(2, 2)
    assert not asked(8, method="analytic").jit_compile


def test_a_batch_is_chosen_for_all_devices(shared, monkeypatch):
    def plan(request):
        return SimpleNamespace(peak_bytes=request.of_a_replica().batch_size << 20)

    monkeypatch.setitem(METHODS, "plan", plan)
    options = {"optimizer": "adam", "device": "h100", "largest": 10}
    assert km.find_batch_size(net(), "1GiB", **options) == 10
    shared(4, 4)
    assert km.find_batch_size(net(), "1GiB", **options) == 8


def test_no_batch_is_smaller_than_its_replicas(shared, monkeypatch):
    monkeypatch.setitem(METHODS, "plan", lambda _: SimpleNamespace(peak_bytes=1))
    options = {"optimizer": "adam", "device": "h100"}
    shared(4, 4)
    assert km.find_batch_size(net(), "1GiB", **options, largest=4) == 4
    message = "a whole number from 4. Received: largest=3"
    with pytest.raises(ConfigError, match=message):
        km.find_batch_size(net(), "1GiB", **options, largest=3)


def by_layout(_):
    """Return what is held, asked twice for each of two layouts of one mesh; in a child.

    Plans are made up: there is a compiler for a card on some machines only.
    """

    def program_of(request):
        return SimpleNamespace(batch=[])

    def answer(request, *_):
        stored = persistent_parts(request)
        return request.answer("plan", stored, (sum(p.nbytes for p in stored),) * 3)

    compiler = plans.compiler
    compiler.check_installed = lambda: "none"
    compiler.program_of, compiler.compiled = program_of, lambda *_: b""
    plans.answer = answer
    held = {}
    for path in ("up/kernel", "down/kernel") * 2:
        layouts = keras.distribution.LayoutMap(
            keras.distribution.DeviceMesh((1, 4), ["batch", "model"])
        )
        layouts[path] = (None, "model")
        keras.utils.clear_session()  # one job needs one name
        with keras.distribution.ModelParallel(layout_map=layouts).scope():
            found = asked(8, method="plan", device="a100")
        held.setdefault(path, []).append(found.by_category()["parameter"])
    return held


def test_a_plan_is_for_one_layout_alone(tmp_path):
    environment = {**FOUR, "XDG_CACHE_HOME": str(tmp_path)}
    task = f"{__name__}:by_layout"
    found = run_in_child(task, {}, backend="jax", environment=environment)
    up, down = 32 * 256, 256 * 64
    whole = up + 256 + down + 64 + 64 * 7 + 7
    assert found == {
        "up/kernel": [4 * (whole - up * 3 // 4)] * 2,
        "down/kernel": [4 * (whole - down * 3 // 4)] * 2,
    }


def under_a_class_of_ones_own(_):
    """Return estimates under a class of one's own and under Keras's; in a child."""

    class Own(keras.distribution.DataParallel):
        pass

    found = {}
    for cls in (keras.distribution.DataParallel, Own):
        with cls().scope():
            found[cls.__name__] = asked(8, method="analytic").to_json()
            if cls is Own:
                plans.compiler.check_installed = lambda: "none"
                with pytest.raises(ConfigError) as raised:
                    asked(8, method="plan", device="a100")
                found["plan"] = str(raised.value)
    return found


def test_a_distribution_of_ones_own_is_refused_by_another_process_alone():
    task = f"{__name__}:under_a_class_of_ones_own"
    found = run_in_child(task, {}, backend="jax", environment=FOUR)
    assert found["Own"] == found["DataParallel"]
    assert json.loads(found["Own"])["devices"] == 4
    assert "Another process cannot recreate this distribution" in found["plan"]
    assert "Received: a Own" in found["plan"]


def planned_by_jax(_):
    """Return plans of one, two and four devices; in a child."""
    found = {}
    with distributions(2)["DataParallel"].scope():
        found["replicas"] = plan()
    with distributions(4)["ModelParallel by 2"].scope():
        found["split"] = plan()
    return found | {"alone": plan()}


def plan():
    model = net()
    model.compile("adam", "mse")
    found = km.estimate_memory(model, 8192, method="plan", device="a100")
    sizes = found.by_category()
    held = sum(sizes[category] for category in STATE)
    # What the allocator gives beyond what it is asked for is no part of the plan.
    return {"held": held, "moving": found.peak_bytes - held - sizes.get("rounding", 0)}


@pytest.mark.plans
def test_a_program_for_several_devices_is_planned(tmp_path):
    environment = {**FOUR, "XDG_CACHE_HOME": str(tmp_path)}
    task = f"{__name__}:planned_by_jax"
    found = run_in_child(task, {}, backend="jax", environment=environment)
    alone, replicas, split = (found[k] for k in ("alone", "replicas", "split"))
    assert replicas["held"] == alone["held"]
    of_kernels = 3 * 4 * (32 * 256 + 256 + 256 * 64)
    assert split["held"] == alone["held"] - of_kernels // 2
    assert replicas["moving"] == pytest.approx(alone["moving"] / 2, rel=0.2)
    assert split["moving"] < 0.9 * replicas["moving"]


def test_a_step_of_several_devices_is_not_measured():
    request = checked_request(net(), 4, optimizer="sgd", device="cpu")
    several = replace(request, sharding=Sharding(devices=2, replicas=2))
    with pytest.raises(ConfigError, match=r"no distribution\. Received: .* 2 devices"):
        METHODS["measured"](several)
