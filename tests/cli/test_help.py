"""`--help` describes each option once, and as the code behaves."""

import re

import keras
import numpy as np
import pytest

from kerasmem.cli.main import build_parser

pytestmark = pytest.mark.one_backend


def parsers():
    return build_parser()._subparsers._group_actions[0].choices


def helps(flag):
    """Return the help of an option by command."""
    return {
        name: action.help
        for name, parser in parsers().items()
        for action in parser._actions
        if flag in action.option_strings
    }


@pytest.mark.parametrize(
    ("flag", "commands"),
    [
        ("--loss", {"estimate", "tune", "compress", "distill", "evaluate", "compare"}),
        ("--metric", {"distill", "evaluate", "compare"}),
        ("--optimizer", {"estimate", "tune"}),
        ("--report", {"compress", "distill"}),
        ("--seed", {"compress", "distill"}),
        ("--tolerance", {"export", "runtimes"}),
    ],
)
def test_commands_share_the_text_of_an_option(flag, commands):
    texts = helps(flag)
    assert texts.keys() >= commands
    assert len({texts[name] for name in commands}) == 1


def test_the_metric_of_a_limit_is_named_only_where_there_is_one():
    texts = helps("--metric")
    assert texts["compress"] == f"{texts['distill']} The first one decides --max-drop."


def test_data_is_one_text_with_sentences_for_a_command():
    texts = helps("--data")
    basis = texts["runtimes"]
    names = ("compress", "distill", "evaluate", "compare", "export")
    assert all(texts[name].startswith(f"{basis} ") for name in names)
    takes_tokens = {name for name in names if "language models" in texts[name]}
    assert takes_tokens == {"compress", "evaluate", "compare"}
    held_out = {name for name in names if "tenth" in texts[name]}
    assert held_out == {"compress", "distill"}


@pytest.mark.parametrize("command", ["distill", "evaluate", "compare"])
def test_data_is_required_where_a_text_is_shared(command):
    (data,) = [a for a in parsers()[command]._actions if a.dest == "data"]
    assert data.required


def test_a_placeholder_is_no_value():
    values = {
        f"{name} {action.metavar}"
        for name, parser in parsers().items()
        for action in parser._actions
        if re.match(r"\d", str(action.metavar))
    }
    # --time-budget is an option of the steps.
    assert values <= {"compress 10m"}


def test_only_a_command_with_limits_has_their_exit_code(kerasmem):
    assert "3 a limit not met" in " ".join(kerasmem("compress --help").out.split())
    assert "3 a" not in " ".join(kerasmem("evaluate --help").out.split())


def test_run_describes_its_own_exit_code(kerasmem):
    assert "the exit code of the script" in kerasmem("run --help").out
    assert "--max-drop" not in kerasmem("run --help").out
    assert "3 a limit not met" in " ".join(kerasmem("compress --help").out.split())


def test_the_tolerances_are_the_defaults():
    from kerasmem.extras.litert import file_loss, verified

    shown = [float(n) for n in re.findall(r"\d\S*\d", helps("--tolerance")["export"])]
    kinds = (file_loss.ACCURACY, file_loss.DECISIONS, file_loss.RELATIVE)
    expected = [file_loss.TOLERANCES[kind] for kind in kinds]
    assert shown == [*expected, verified._FLOAT_TOLERANCE]


def test_the_samples_of_an_export_are_the_limits():
    from kerasmem.extras.litert.options import JUDGED
    from kerasmem.extras.litert.verified import CALIBRATION

    shown = re.findall(r"at most (\d+)", helps("--data")["export"])
    assert [int(n) for n in shown] == [CALIBRATION, JUDGED]


def test_epochs_are_the_epochs_of_presets_and_of_a_search():
    from kerasmem.compression.recipe import PRESETS
    from kerasmem.compression.search import _EPOCHS

    text = helps("--fine-tune-epochs")["compress"]
    assert f"{_EPOCHS} in a search" in text
    trained = {name for name, preset in PRESETS.items() if preset.epochs}
    assert trained == {name for name in PRESETS if name in text}
    assert {PRESETS[name].epochs for name in trained} == {3}
    assert "(default: 0; 3 with the presets" in text


def test_the_schemes_of_an_estimate_are_all_that_need_nothing_more():
    from kerasmem.compression.quantize.config import MIXED, SCHEMES, STATIC

    text = helps("--quantize")["estimate"]
    listed = re.split(r", | or ", re.search(r": (.*) \(default", text)[1])
    assert sorted(listed) == sorted({*SCHEMES} - {MIXED, STATIC})


def test_each_part_of_only_is_in_the_name_of_an_option():
    from kerasmem.extras.tune.variants import variants
    from tests.memory.tune.conftest import ask

    layers = [keras.Input((4,)), keras.layers.Dense(2)]
    model = keras.Sequential(layers)
    model.compile("adam", "mse")
    names = [variant.name for variant in variants(ask(model, 8), devices=2)]
    text = helps("--only")["tune"].partition(": ")[2].partition(" (default")[0]
    words = re.split(r", | or ", re.sub(r" \([^)]*\)", "", text))
    assert len(words) == 7
    unknown = [w for w in words if not any(w in name for name in names)]
    assert unknown == []
    others = {name for name in names if not any(w in name for w in words)}
    assert others == set()


def test_a_student_has_the_fraction_of_parameters():
    import kerasmem as km

    assert "fraction of the teacher's parameters" in helps("--student-ratio")["distill"]
    hidden = [keras.layers.Dense(64, "relu") for _ in range(2)]
    teacher = keras.Sequential([keras.Input((32,)), *hidden, keras.layers.Dense(4)])
    student = km.make_student(teacher, 0.25)
    share = student.count_params() / teacher.count_params()
    np.testing.assert_allclose(share, 0.25, atol=0.02)
