"""The names and keywords that users rely on, and what their docstrings tell."""

import ast
import builtins
import doctest
import inspect
import re
import subprocess
import sys
import textwrap

import pytest

import kerasmem as km

pytestmark = pytest.mark.one_backend


def parameters(function):
    return list(inspect.signature(function).parameters)


def test_the_public_names_are_these_and_all_of_them_are_there():
    assert (
        sorted(km.__all__)
        == km.__all__
        == [
            "Budget",
            "Calibration",
            "Cluster",
            "CompressionResult",
            "Distill",
            "Distiller",
            "Equalize",
            "Factorize",
            "FoldBatchNorm",
            "Prune",
            "PruneChannels",
            "Quantize",
            "ReestimateBatchNorm",
            "callbacks",
            "compare_runtimes",
            "compress",
            "compress_activations",
            "dequantize",
            "distill",
            "distillation",
            "errors",
            "estimate_memory",
            "export",
            "find_batch_size",
            "fit",
            "layers",
            "load_model",
            "make_student",
            "memory",
            "optimizers",
            "plan_memory",
            "predict",
            "quantization_aware",
            "rematerialize",
            "save_model",
        ]
    )
    assert all(hasattr(km, name) for name in km.__all__)
    assert dir(km) == sorted([*km.__all__, "__version__"])
    assert km.callbacks.__all__ == [
        "ChannelSparsity",
        "FreezeBatchNorm",
        "GradientMonitor",
        "MemoryMonitor",
        "MemoryTimeline",
        "Pruning",
    ]
    assert km.memory.__all__ == [
        "allocator",
        "configure",
        "inspect_data",
        "inspect_dtypes",
        "isolated",
        "scope",
        "status",
        "stream",
    ]
    for module in (km.callbacks, km.memory):
        assert all(hasattr(module, name) for name in module.__all__)
        assert {*module.__all__, "__name__"} <= {*dir(module)}
        assert not hasattr(module, "no_name")


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (km.callbacks.MemoryMonitor, ["every", "host", "log_dir"]),
        (km.callbacks.GradientMonitor, ["every", "per_variable", "log_dir"]),
        (
            km.compress,
            [
                *["model_or_path", "steps", "data", "validation_data"],
                *["fine_tune_epochs", "target", "max_drop", "loss", "metrics"],
                *["custom_objects", "seed"],
            ],
        ),
        (
            km.memory.configure,
            ["limit", "growth", "devices", "preallocate", "allocator"],
        ),
        (km.memory.status, []),
        (km.find_batch_size, ["model", "memory_limit"]),
        (km.distill, ["teacher", "student", "data", "epochs"]),
        (
            km.quantization_aware,
            [
                *["model", "quantize", "activations", "decay", "learned_scales"],
                "ranges",
            ],
        ),
        (
            km.estimate_memory,
            [
                *["model", "batch_size", "optimizer", "dtype_policy", "jit_compile"],
                *["backend", "training", "device", "method"],
            ],
        ),
    ],
)
def test_the_keywords_of_the_contract_come_first_and_in_order(function, names):
    assert parameters(function)[: len(names)] == names


def public():
    """All public functions and classes by the path that a user writes."""
    errors = {f"errors.{name}" for name in km.errors.__all__}
    found = {}
    rooms = {"": km, "callbacks.": km.callbacks, "distillation.": km.distillation}
    rooms |= {"errors.": km.errors, "memory.": km.memory, "optimizers.": km.optimizers}
    rooms |= {"memory.allocator.": km.memory.allocator}
    for prefix, room in rooms.items():
        found |= {prefix + name: getattr(room, name) for name in room.__all__}
    objects = {n: o for n, o in found.items() if not inspect.ismodule(o)}
    return objects, errors


OBJECTS, ERRORS = public()
DOCUMENTED = sorted(OBJECTS.keys() - ERRORS)


def sections(of):
    """The sections of a docstring by name, dedented."""
    parts = re.split(r"^(\w+):\n", inspect.getdoc(of), flags=re.MULTILINE)
    names, texts = parts[1::2], map(textwrap.dedent, parts[2::2])
    return dict(zip(names, texts, strict=True))


def entries(section):
    """The names that a section explains, each at the start of an entry."""
    return re.findall(r"^\**(\w+): ", section, flags=re.MULTILINE)


def entry_points(of):
    """The functions whose errors a caller of a function or a class meets."""
    if inspect.isfunction(of):
        return [of]
    names = ("__init__", "__post_init__")
    made = [getattr(of, name) for name in names if hasattr(of, name)]
    # A dataclass writes an `__init__` that has no source; it calls `__post_init__`.
    return [f for f in made if inspect.isfunction(f) and not is_generated(f)]


def is_generated(function):
    return function.__code__.co_filename == "<string>"


def raises(function, cls=None, seen=None):
    """Whether a function holds a `raise`, or a function of its module that it calls.

    Followed are names of the module, methods of `self`, and imported `check...`s.
    """
    seen = set() if seen is None else seen
    if function in seen:
        return False
    seen.add(function)
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    called = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise):
            return True
        if isinstance(node, ast.Call):
            called.append(callee(node.func, function, cls))
    ours = (f for f in called if inspect.isfunction(f) and not is_generated(f))
    return any(
        raises(f, cls, seen)
        for f in ours
        if f.__module__ == function.__module__
        or (f.__module__.startswith("kerasmem.") and f.__name__.startswith("check"))
    )


def callee(node, function, cls):
    if isinstance(node, ast.Name):
        return function.__globals__.get(node.id)
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        is_method = cls is not None and node.value.id == "self"
        return getattr(cls, node.attr, None) if is_method else None
    return None


@pytest.mark.parametrize("name", DOCUMENTED)
def test_a_docstring_explains_every_argument_and_no_other(name):
    of = OBJECTS[name]
    expected = list(inspect.signature(of).parameters)
    assert sorted(entries(sections(of).get("Args", ""))) == sorted(expected)


@pytest.mark.parametrize("name", DOCUMENTED)
def test_a_docstring_of_a_function_tells_what_it_returns(name):
    of = OBJECTS[name]
    is_function = inspect.isfunction(of)
    answers = is_function and inspect.signature(of).return_annotation is not None
    assert ("Returns" in sections(of)) == answers


def own_methods():
    """Public methods by path, where they are first defined: no hooks of Keras."""
    classes = {
        n: o for n, o in OBJECTS.items() if n in DOCUMENTED and inspect.isclass(o)
    }
    found = {}
    for cls in classes.values():
        for key in {key for base in cls.__mro__ for key in vars(base)}:
            first = [base for base in cls.__mro__ if key in vars(base)][-1]
            method = vars(first)[key]
            is_ours = first.__module__.startswith("kerasmem.")
            if is_ours and inspect.isfunction(method) and not key.startswith("_"):
                found[f"{first.__name__}.{key}"] = method
    return found


METHODS = own_methods()


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_docstring_of_a_method_explains_arguments_and_answer(name):
    method = METHODS[name]
    signature = inspect.signature(method)
    told = sections(method)
    expected = sorted(set(signature.parameters) - {"self"})
    assert sorted(entries(told.get("Args", ""))) == expected
    assert ("Returns" in told) == (signature.return_annotation is not None)


@pytest.mark.parametrize("name", DOCUMENTED)
def test_a_docstring_tells_what_is_raised(name):
    of = OBJECTS[name]
    cls = of if inspect.isclass(of) else None
    if inspect.signature(of).parameters:
        may_raise = any(raises(f, cls) for f in entry_points(of))
        assert not may_raise or "Raises" in sections(of)
    told = entries(sections(of).get("Raises", ""))
    for error in told:
        known = getattr(km.errors, error, getattr(builtins, error, None))
        assert issubclass(known, Exception), error
    assert told or "Raises" not in sections(of)


@pytest.mark.parametrize("name", DOCUMENTED)
def test_a_docstring_has_an_example_that_runs(name):
    text = sections(OBJECTS[name])["Example"]
    examples = doctest.DocTestParser().get_examples(text)
    run = [e.source for e in examples if not e.options.get(doctest.SKIP)]
    shown = "".join(source for source in run)
    assert name.rpartition(".")[2] in shown + "".join(e.want for e in examples)
    assert run


@pytest.mark.parametrize("name", sorted(ERRORS))
def test_an_error_tells_when_it_is_raised_and_what_to_do(name):
    of = OBJECTS[name]
    assert issubclass(of, (km.errors.KerasMemError, UserWarning))
    body = re.split(r"^\w+:\n", inspect.getdoc(of), flags=re.MULTILINE)[0]
    assert len(re.findall(r"\.(?:\s|$)", body)) >= 2


def test_errors_are_all_there_and_nothing_else():
    found = vars(km.errors).values()
    own = {
        c.__name__
        for c in found
        if inspect.isclass(c) and c.__module__ == km.errors.__name__
    }
    assert sorted(own) == sorted(km.errors.__all__)


def test_what_a_name_needs_comes_when_it_is_first_used(new_interpreter):
    code = """
import sys, kerasmem as km
loaded = set(sys.modules)
assert "kerasmem.compression.compress" not in loaded
assert "kerasmem.compression.quantize.aware.quantizers" in loaded
assert km.compress is sys.modules["kerasmem.compression.compress"].compress
assert "Prune" in dir(km) and not hasattr(km, "compres")
from kerasmem import *
assert compress is km.compress and memory is km.memory
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_the_import_adds_no_framework_to_those_of_keras(
    new_interpreter, monkeypatch, backend
):
    monkeypatch.setenv("KERAS_BACKEND", backend)
    code = """
import sys, keras
before = set(sys.modules)
import kerasmem
frameworks = {"tensorflow", "jax", "torch", "tf_keras"}
assert not frameworks & (set(sys.modules) - before)
assert "tensorflow_model_optimization" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_script_that_is_named_as_the_command_has_all_features(
    new_interpreter, tmp_path
):
    script = tmp_path / "kerasmem.py"
    code = """
import sys
sys.path.remove(sys.path[0])  # there this script is a module of the package's name
import kerasmem as km
assert "kerasmem.registered" not in sys.modules
assert "scope" in dir(km.memory)
with km.memory.scope("trial") as scope:
    pass
assert scope.stayed == []
"""
    script.write_text(code)
    subprocess.run([sys.executable, str(script)], check=True)
