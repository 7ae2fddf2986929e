"""The suite runs under one named backend; an unnamed one is an error, not a default."""

import gc
import os
import sys
import zlib
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import hypothesis
import pytest

from tests import forkserver, lanes

# How long an example takes is a matter of who else uses the machine. CI takes the same
# examples for every change; new ones are looked for by hand.
hypothesis.settings.register_profile(
    "kerasmem", deadline=None, derandomize="CI" in os.environ
)
hypothesis.settings.load_profile("kerasmem")

BACKENDS = ("tensorflow", "jax", "torch")

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
if os.environ.get("KERAS_BACKEND") == "torch":
    # There is a worker for each core, and torch takes as many threads in each.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
else:
    # A test runs its programs once or twice: to compile them well takes too long. Most
    # are one operation, and fusion emitters would take half of the time for that.
    flags = (
        "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
    )
    if sys.version_info < (3, 12):
        # The compiler of JAX 0.11, which needs Python 3.12, ends at this flag.
        flags += " --xla_cpu_use_fusion_emitters=false"
    os.environ.setdefault("XLA_FLAGS", flags)
    # To look for garbage took a sixth of the time. torch's own depends on when it is.
    gc.set_threshold(100_000, 20, 100)
# What JAX has compiled is kept for other tests, workers, children and the next run.
os.environ.setdefault(
    "JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache/jax")
)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")


def pytest_configure(config):
    backend = os.environ.get("KERAS_BACKEND")
    if backend not in BACKENDS:
        raise pytest.UsageError(
            f"Set KERAS_BACKEND to one of {BACKENDS}. Received: {backend!r}."
        )
    is_worker = hasattr(config, "workerinput")
    if not is_worker:
        config.add_cleanup(forkserver.begin())
    if is_worker or not config.getoption("numprocesses", None):
        forkserver.install()


def pytest_addoption(parser):
    text = "keep how long each test took, in tests/durations"
    parser.addoption("--write-durations", action="store_true", help=text)
    text = "run one in N tests, drawn by their names and KEY, such as a commit"
    parser.addoption("--share", metavar="N:KEY", default="1:", help=text)


WORKED_OUT_IN_A_CHILD = {
    "test_gradient_monitor.py": "child",
    "test_memory_on_tensorflow.py": "measured",
    "test_memory_timeline.py": "seen",
    "test_on_this_cpu.py": "measured",
    "test_oom_on_tensorflow.py": "seen",
    "test_real_out_of_memory.py": "seen",
    "test_run_out_of_memory.py": "ended",
}
"""A file's fixture that takes many seconds: not in the fast lane as well."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Mark what is slow, and leave out what one lane is enough for."""
    backend = os.environ["KERAS_BACKEND"]
    names = [item.nodeid for item in items]
    slow = lanes.slow(names, lanes.durations("tensorflow"))
    for item in items:
        shared = WORKED_OUT_IN_A_CHILD.get(item.path.name)
        if item.nodeid in slow or shared in item.fixturenames:
            item.add_marker("slow")
    if backend != "tensorflow":
        once = {
            item
            for item in items
            if any(map(item.get_closest_marker, ("one_backend", "browser")))
        }
        _leave_out(config, items, once)
    if backend != "jax":
        _leave_out(config, items, {i for i in items if i.get_closest_marker("jax")})
    if find_spec("jax_plugins") is None:
        plans = {item for item in items if item.get_closest_marker("plans")}
        _leave_out(config, items, plans)
    count, _, key = config.getoption("--share").partition(":")
    drawn = {i for i in items if zlib.crc32(f"{key}{i.nodeid}".encode()) % int(count)}
    if drawn:
        _leave_out(config, items, drawn)


def _leave_out(config, items, some):
    config.hook.pytest_deselected(items=[*some])
    items[:] = [item for item in items if item not in some]


TOOK = Counter()
"""Seconds by test, of this run."""


def pytest_runtest_logreport(report):
    TOOK[report.nodeid] += report.duration


@pytest.fixture(autouse=True, scope="module")
def _few_objects():
    """What a module leaves behind is not looked through again in every collection."""
    yield
    if os.environ["KERAS_BACKEND"] == "jax":
        import jax

        jax.clear_caches()  # some 25 MiB for every model that was compiled
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _same_start():
    """Every test starts from one seed and leaves no Keras state behind."""
    import keras

    keras.utils.set_random_seed(7)
    yield
    keras.utils.clear_session(free_memory=False)


@pytest.fixture
def backend():
    import keras

    return keras.backend.backend()


@pytest.fixture
def origin(request):
    """Return where a test's model comes from, drawn by the name of the test."""
    from tests.models import ORIGINS

    return ORIGINS[zlib.crc32(request.node.name.encode()) % len(ORIGINS)]


@pytest.fixture
def new_interpreter():
    """Let the children of a test be interpreters, for it is about how they start."""
    with forkserver.new_interpreter():
        yield


@pytest.fixture
def counted_traces(backend):
    """JAX counts the traces of a step only while its places for fast calls last."""
    if backend == "jax":
        import jax

        jax.clear_caches()


MOST_SKIPPED = 2
"""One test needs a GPU, one group a browser; with more, something is not tested."""


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session):
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    is_worker = hasattr(session.config, "workerinput")
    if session.config.option.write_durations and not is_worker:
        lanes.write_durations(os.environ["KERAS_BACKEND"], TOOK)
    skipped = len(reporter.stats.get("skipped", [])) if reporter else 0
    if skipped > MOST_SKIPPED and session.exitstatus == pytest.ExitCode.OK:
        reporter.write_line(f"{skipped} tests were skipped, {MOST_SKIPPED} may be.")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
