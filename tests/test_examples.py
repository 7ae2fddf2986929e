"""Every example runs and prints what it promises."""

import re
import runpy
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "examples"
NUMBER = r"([\d.,]+)"


@pytest.fixture
def printed(tmp_path, monkeypatch, capsys):
    def run(name):
        monkeypatch.chdir(tmp_path)
        runpy.run_path(str(FOLDER / name))["main"]()
        assert list(tmp_path.iterdir()) == []
        return capsys.readouterr().out

    return run


def numbers(pattern, text):
    """Return the numbers in the only place that the pattern matches."""
    (match,) = re.finditer(pattern, text)
    return [float(group.replace(",", "")) for group in match.groups()]


@pytest.mark.one_backend
def test_these_are_all_examples():
    assert {path.name for path in FOLDER.glob("*.py")} == {
        "callbacks_in_fit.py",
        "compress_a_saved_model.py",
        "prune_in_two_ways.py",
        "stream_with_pca.py",
        "teacher_to_student.py",
    }


@pytest.mark.filterwarnings("ignore::kerasmem.errors.KerasMemWarning")
def test_the_monitors_write_columns_and_three_epochs_of_figures(printed):
    text = printed("callbacks_in_fit.py")
    (columns,) = re.findall(r"columns of the CSV: (.*)", text)
    ours = {"gradient_norm", "gradient_norm_max", "gradient_nonfinite"}
    assert {*ours, "host_peak_mib", "loss", "val_loss"} <= set(columns.split(","))
    series = {
        name: numbers(rf"(?m)^{name}: {', '.join([NUMBER] * 3)}$", text)
        for name in ("loss", "gradient_norm", "gradient_norm_max", "host_peak_mib")
    }
    assert series["loss"][2] < series["loss"][0]
    pairs = zip(series["gradient_norm"], series["gradient_norm_max"], strict=True)
    assert all(0 < mean <= largest for mean, largest in pairs)
    assert min(series["host_peak_mib"]) > 100  # no process with Keras in it is smaller
    (norm,) = numbers(rf"largest gradient in the last epoch: \S+, norm {NUMBER}", text)
    assert 0 < norm < series["gradient_norm_max"][2]


@pytest.mark.one_backend
def test_the_saved_model_is_eight_times_smaller_and_as_good_when_reloaded(printed):
    text = printed("compress_a_saved_model.py")
    (ratio,) = numbers(rf"(?m)^│ file without .*│ +{NUMBER}x │ measured +│$", text)
    assert ratio >= 8
    before, after = numbers(rf"(?m)^│ accuracy +│ +{NUMBER} │ +{NUMBER} │", text)
    assert after > before - 0.05
    (reloaded,) = numbers(rf"loaded by stock Keras: {NUMBER}", text)
    assert reloaded == pytest.approx(after, abs=2e-3)  # two images of a thousand
    assert len(re.findall(r"int8 with \d+ scales", text)) == 2


@pytest.mark.one_backend
def test_the_student_is_a_tenth_of_its_teacher_and_has_learned(printed):
    text = printed("teacher_to_student.py")
    figures = rf"{NUMBER} parameters, {NUMBER}"
    teacher, taught = numbers(f"teacher: {figures}", text)
    student, learned = numbers(f"student: {figures}", text)
    assert student < teacher / 10
    assert taught > 0.7
    assert learned > taught - 0.1


@pytest.mark.one_backend
def test_what_was_reduced_on_disk_is_a_fraction_and_still_learned_from(printed):
    text = printed("stream_with_pca.py")
    features, kept = numbers(rf"{NUMBER} features keep {NUMBER} of the variance", text)
    assert features == 32
    assert kept > 0.7
    before, after = numbers(rf"on disk: {NUMBER} bytes, reduced {NUMBER}", text)
    assert before / after > 20  # 784 features are 24.5 times 32
    (learned,) = numbers(rf"(?m)^accuracy by epoch: .*, {NUMBER}$", text)
    assert learned > 0.6


@pytest.mark.one_backend
def test_both_ways_to_prune_keep_the_accuracy(printed):
    text = printed("prune_in_two_ways.py")
    left = {}
    for name in ("zeros", "channels"):
        parameters, whole, nonzero, file, before, after = numbers(
            rf"(?m)^{name}: parameters {NUMBER} of {NUMBER}, not zero {NUMBER}, "
            rf"file {NUMBER} times smaller, accuracy {NUMBER} to {NUMBER}$",
            text,
        )
        left[name] = parameters / whole, nonzero / whole
        assert file > 2
        assert after > before - 0.03
    assert left["zeros"][0] == 1
    assert left["zeros"][1] < 0.25
    assert left["channels"][0] < 0.4
