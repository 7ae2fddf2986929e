"""A task in a process of its own."""

import os
import time

import keras
import pytest

from kerasmem.errors import ChildDiedError, ConfigError, OutOfMemoryError
from kerasmem.processes import death, run_in_child, run_script

pytestmark = [
    pytest.mark.one_backend,
    pytest.mark.usefixtures("new_interpreter"),
]


def complain(job):
    """Runs in the child."""
    given = os.environ["GIVEN"]
    told = f"{keras.backend.backend()} was told {job['word']!r}, {given}."
    raise OutOfMemoryError(told)


def die(job):
    """Runs in the child."""
    os._exit(3)


def sleep(job):
    """Runs in the child."""
    time.sleep(600)


def ask(task, **options):
    backend = options.pop("backend", keras.backend.backend())
    return run_in_child(f"{__name__}:{task}", {"word": "a"}, backend=backend, **options)


def test_a_childs_error_comes_back_as_it_was_raised():
    words = r"^tensorflow was told 'a', and set\.$"
    with pytest.raises(OutOfMemoryError, match=words) as caught:
        ask("complain", backend="tensorflow", environment={"GIVEN": "and set"})
    assert caught.value.post_mortem is None
    assert "GIVEN" not in os.environ


def test_a_child_that_dies_is_told_from_one_that_complains():
    with pytest.raises(ChildDiedError, match="^Measuring batch size 256 failed. Rec"):
        ask("die", doing="Measuring batch size 256")


def test_a_child_without_memory_names_the_step_of_the_user():
    stderr = """\
    errors_impl.ResourceExhaustedError: Graph execution error:

    Detected at node mul defined at (most recent call last):
      File "train.py", line 3, in <module>
    OOM when allocating tensor with shape[64,8] by allocator cpu
         [[{{node mul}}]] [Op:__inference_step]
    """
    error = death("Measuring batch size 256", 1, stderr)
    words = "Measuring batch size 256 ran out of memory. Received: OOM when allocating"
    assert str(error).startswith(words)
    assert "train.py" not in str(error)
    assert 'File "train.py", line 3' in error.stderr


def test_a_long_error_is_shortened_to_its_cause():
    lines = [
        "errors_impl.InvalidArgumentError: Graph execution error:",
        "Detected at node take defined at (most recent call last):",
        'File "train.py", line 3, in <module>',
        "indices[0] = 5 is not in [0, 3)",
        "[[{{node take}}]] [Op:__inference_step]",
    ]
    error = death("The estimate", 1, "\n".join(lines))
    assert "Graph execution error: indices[0] = 5 is not in [0, 3)." in str(error)
    assert error.stderr.splitlines() == lines


def test_a_message_holds_no_codes_of_a_terminal():
    error = death(
        "The estimate", 1, "ValueError: \x1b[1mDimensions must be equal.\x1b[0m"
    )
    assert "Received: ValueError: Dimensions must be equal. Next" in str(error)


def test_a_child_that_takes_too_long_is_ended():
    with pytest.raises(TimeoutError, match="sleep took more than 1 seconds"):
        ask("sleep", seconds=1)


def test_a_backend_that_is_not_installed_is_named():
    with pytest.raises(ConfigError, match="Received: no module 'mxnet'"):
        ask("die", backend="mxnet")


def test_a_script_gives_what_it_prints_and_finds_what_this_process_finds(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys, psutil\n"
        "assert not any(name.startswith('keras') for name in sys.modules)\n"
        "print(sys.argv[1:], os.environ['GIVEN'], os.environ['CUDA_VISIBLE_DEVICES'])"
    )
    (tmp_path / "psutil.py").write_text("raise ImportError('beside the script')")
    found = run_script(script, "a", "b c", environment={"GIVEN": "set"})
    assert found == "['a', 'b c'] set -1\n"


def test_a_script_that_dies_tells_the_last_line_that_it_wrote(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("print('lost')\nraise ValueError('why')")
    with pytest.raises(
        ChildDiedError, match="script failed. Received: ValueError: why"
    ) as caught:
        run_script(script)
    assert caught.value.reason == "ValueError: why"


def test_a_child_that_dies_names_the_error_and_not_what_stands_behind_it(tmp_path):
    script = tmp_path / "script.py"
    lines = "a shape\\n\\nArguments received:\\n  * x=2"
    script.write_text(f"raise ValueError('{lines}')")
    with pytest.raises(
        ChildDiedError, match=r"Received: ValueError: a shape\. Next: "
    ) as e:
        run_script(script)
    assert e.value.stderr.endswith("* x=2")
