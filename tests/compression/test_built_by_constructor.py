"""A model whose constructor builds it is compressed, saved and loaded as any other."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.compression.recipe import apply_technique
from kerasmem.graph.clone import clone
from kerasmem.graph.values import to_numpy
from tests.models import BuiltByConstructor, Subclassed, chain, subclassed

# Keras says it of a task of KerasHub whenever it loads one.
pytestmark = pytest.mark.filterwarnings("ignore:.compile\\(\\). was not called")

ON_TENSORFLOW = keras.backend.backend() == "tensorflow"
if ON_TENSORFLOW:  # elsewhere none of its models is made here
    import keras_hub
TINY = {"hidden_dim": 16, "intermediate_dim": 32}
INT4 = km.Quantize("int4", granularity="group", group_size=4, symmetric=False)


def gemma():
    backbone = keras_hub.models.GemmaBackbone(
        vocabulary_size=40,
        num_layers=2,
        num_query_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        **TINY,
    )
    return keras_hub.models.GemmaCausalLM(backbone, preprocessor=None)


def bert():
    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=40, num_layers=1, num_heads=2, max_sequence_length=16, **TINY
    )
    return keras_hub.models.BertTextClassifier(backbone, num_classes=3)


def mixtral():
    backbone = keras_hub.models.MixtralBackbone(
        vocabulary_size=40,
        num_layers=1,
        num_query_heads=2,
        num_key_value_heads=1,
        num_experts=3,
        **TINY,
    )
    return keras_hub.models.MixtralCausalLM(backbone, preprocessor=None)


def whisper():
    return keras_hub.models.WhisperBackbone(
        vocabulary_size=40,
        num_layers=1,
        num_heads=2,
        num_mels=8,
        max_encoder_sequence_length=16,
        max_decoder_sequence_length=8,
        **TINY,
    )


MODELS = {
    "own": BuiltByConstructor,
    "nested": lambda: chain((6,), BuiltByConstructor(inner=BuiltByConstructor(4))),
    "subclassed": subclassed,
    "gemma": gemma,
    "bert": bert,
    "mixtral": mixtral,
    "whisper": whisper,
}


def inputs_of(model):
    """Two samples for any of the models."""
    random = np.random.default_rng(0)
    if isinstance(model, Subclassed):
        return random.integers(0, 11, (2, 5)).astype("int32")
    found = {}
    for tensor in model.inputs:
        shape = (2, *(length or 8 for length in tensor.shape[1:]))
        if "mask" in tensor.name:
            found[tensor.name] = np.arange(8) < np.array([[8], [5]])
        elif tensor.dtype == "int32":
            found[tensor.name] = random.integers(0, 2, shape).astype("int32")
        else:
            found[tensor.name] = random.normal(size=shape).astype("float32")
    return found if len(found) > 1 else next(iter(found.values()))


def twice(model, folder):
    """In two calls, the second on the file of the first."""
    most = km.Quantize("int8-dynamic", exclude=("embedding|last",))
    first, _ = apply_technique(most, clone(model))
    km.save_model(first, folder / "once.keras")
    second, _ = apply_technique(
        INT4, km.load_model(folder / "once.keras", compile=False)
    )
    return second


def in_steps(model, _):
    return km.compress(model, [km.Prune(0.5), km.Quantize("int8")]).model


def by(technique):
    return lambda model, _: apply_technique(technique, clone(model))[0]


WAYS = {
    "int8": by(km.Quantize("int8")),
    "dynamic": by(km.Quantize("int8-dynamic")),
    "int4": by(INT4),
    "entropy": by(km.Cluster(8)),
    "twice": twice,
    "steps": in_steps,
}
CASES = [("own", "steps"), ("nested", "twice"), ("subclassed", "twice")]
WITH_LORA = ["own"]
if ON_TENSORFLOW:  # whichever runs below, they are built and loaded in the same way
    CASES += [("own", way) for way in WAYS if way != "steps"]
    CASES += [(name, "twice") for name in ("gemma", "bert", "mixtral", "whisper")]
    WITH_LORA += ["gemma"]

LOADED = """
    import json, sys
    from pathlib import Path
    import keras_hub
    from tests.compression.test_built_by_constructor import loaded_from

    print(json.dumps(loaded_from(Path(sys.argv[1]))))
"""


def loaded_from(folder):
    """Return of every file its classes, largest error, and weights that changed."""
    told = {}
    for path in sorted(folder.glob("*/*/*.keras")):
        if path.stem == "once":
            continue
        kept = np.load(path.parent / "expected.npz")
        given = {k.removeprefix("x_"): kept[k] for k in kept if k.startswith("x_")}
        model = km.load_model(path)
        outputs = model(given.pop("", given), training=False)
        found = [to_numpy(each) for each in keras.tree.flatten(outputs)]
        weights = enumerate(model.get_weights())
        told[str(path.relative_to(folder))] = [
            [cls.__name__ for cls in type(model).__mro__],
            max(float(abs(y - kept[f"y_{n}"]).max()) for n, y in enumerate(found)),
            [n for n, weight in weights if (weight != kept[f"w_{n}"]).any()],
        ]
    return told


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What another process finds in every file: one process for all of them.

    Elsewhere the files are read here: that a process has made nothing shows on one.
    """
    folder = tmp_path_factory.mktemp("files")
    made = {name: MODELS[name]() for name in {name for name, _ in CASES}}
    for name, way in CASES:
        place = folder / name / way
        place.mkdir(parents=True)
        model = WAYS[way](made[name], place)
        coding = "entropy" if way in ("entropy", "twice") else "deflate"
        km.save_model(model, place / "saved.keras", coding=coding)
        write_expected(model, place / "expected.npz")
    if not ON_TENSORFLOW:
        return loaded_from(folder)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(LOADED), str(folder)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def write_expected(model, path):
    inputs = inputs_of(model)
    named = inputs if isinstance(inputs, dict) else {"": inputs}
    outputs = keras.tree.flatten(model(inputs, training=False))
    arrays = {f"x_{name}": value for name, value in named.items()}
    arrays |= {f"y_{n}": to_numpy(each) for n, each in enumerate(outputs)}
    arrays |= {f"w_{n}": each for n, each in enumerate(model.get_weights())}
    np.savez(path, **arrays)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "way"), CASES)
def test_another_process_loads_what_was_compressed(model, way, told):
    classes, error, changed = told[f"{model}/{way}/saved.keras"]
    assert error < 1e-5
    assert changed == [], "codes, scales and floats are the same to the bit"
    own = {"own": "BuiltByConstructor", "gemma": "GemmaCausalLM"}
    assert own.get(model, "Model") in classes


def test_a_loaded_one_is_quantized_at_once_and_made_float_again(tmp_path):
    model = BuiltByConstructor(inner=BuiltByConstructor(4))
    small = km.compress(model, km.Quantize("int8"))
    small.save(tmp_path / "m.keras")
    loaded = km.load_model(tmp_path / "m.keras")
    assert [w.dtype for w in loaded.weights] == [w.dtype for w in small.model.weights]
    assert "int8" in {w.dtype for w in loaded.weights}
    plain = km.dequantize(loaded)
    assert type(plain) is BuiltByConstructor
    x = inputs_of(model)
    np.testing.assert_allclose(
        to_numpy(plain(x)), to_numpy(small.model(x)), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("name", WITH_LORA)
def test_lora_of_the_layers_inside_is_loaded_and_made_float(name, tmp_path):
    model = km.compress(MODELS[name](), km.Quantize("int8")).model
    if name == "gemma":
        model.backbone.enable_lora(2)
    else:
        model.layers[1].enable_lora(2)
    for weight in model.trainable_weights:
        weight.assign(weight + 0.1)
    km.save_model(model, tmp_path / "m.keras")
    x = inputs_of(model)
    expected = to_numpy(model(x))
    loaded = km.load_model(tmp_path / "m.keras")
    assert len(loaded.weights) == len(model.weights)
    np.testing.assert_allclose(to_numpy(loaded(x)), expected, rtol=1e-5, atol=1e-5)
    plain = km.dequantize(loaded)
    np.testing.assert_allclose(to_numpy(plain(x)), expected, rtol=1e-5, atol=1e-5)


def test_a_mapped_one_computes_the_same(tmp_path):
    small = km.compress(BuiltByConstructor(), INT4).model
    km.save_model(small, tmp_path / "m.keras", coding="stored")
    mapped = km.load_model(tmp_path / "m.keras", memory_map=True)
    x = inputs_of(small)
    np.testing.assert_allclose(to_numpy(mapped(x)), to_numpy(small(x)), rtol=1e-5)
