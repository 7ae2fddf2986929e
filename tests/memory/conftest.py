"""Processes that really run out of memory wait while other tests run."""

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

LIMITED = {"TF_CPU_ALLOCATOR_USE_BFC": "1", "TF_ENABLE_ONEDNN_OPTS": "0"}
ONE_THREAD = {"TF_NUM_INTEROP_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1"}
CHILDREN = {
    "test_real_out_of_memory.py": (
        "tests.memory.fit.oom_child",
        LIMITED | {"TF_CPU_BFC_MEM_LIMIT_IN_MB": "64"},
    ),
    "test_oom_on_tensorflow.py": (
        "tests.memory.oom.child_tensorflow",
        LIMITED | ONE_THREAD | {"TF_CPU_BFC_MEM_LIMIT_IN_MB": "48"},
    ),
}
"""What the tests in a file need, and its environment.

Each failure takes ten seconds in which TensorFlow's allocator waits, and an import of
TensorFlow five: so a child has several.
"""


@pytest.fixture(scope="session", autouse=True)
def _children(request):
    """Begin, with the first test below, what will be needed."""
    collected = {item.path.name for item in request.session.items}
    with ExitStack() as stack:
        children = {
            file: stack.enter_context(_begun(*child))
            for file, child in CHILDREN.items()
            if file in collected
        }
        yield children
        for child in children.values():
            child.kill()


@pytest.fixture(scope="module")
def seen(_children, request):
    """Return what the child of this file saw."""
    child = _children[request.path.name]
    out, err = child.communicate(timeout=600)
    assert child.returncode == 0, err[-3000:]
    return json.loads(out.splitlines()[-1])


def _begun(module, environment):
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", module],
        env=os.environ | environment,
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
