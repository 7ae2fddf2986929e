"""`kerasmem compress` searches for steps, or takes those of a preset."""

from pathlib import Path

import keras
import numpy as np
import pytest

pytestmark = pytest.mark.one_backend

BASE = "compress model.keras -o out.keras"


@pytest.fixture
def folder(folder):
    """A search holds samples out, and takes more of them than other commands."""
    x = np.random.default_rng(0).normal(size=(110, 6)).astype("float32")
    y = x[:, :3].argmax(axis=1)
    np.savez("split.npz", x_train=x[10:], y_train=y[10:], x_test=x[:10], y_test=y[:10])
    return folder


def test_a_search_without_time_writes_the_model_as_it_was(folder, kerasmem):
    call = kerasmem(
        f"{BASE} --max-drop 0.5 --data split.npz --time-budget 0 --json --seed 1 "
        "--report page.html"
    )
    assert call.code == 0
    search = call.json["report"]["search"]
    assert search["max_drop"] == 0.5
    assert search["metric"] == "accuracy"
    assert search["stopped"] == "time ran out"
    assert [trial["name"] for trial in search["trials"]] == ["unchanged"]
    assert "tried unchanged (not trained): file_bytes" in call.err
    assert "the model is unchanged" in call.err
    assert '<h2 id="search">Trials</h2>' in (folder / "page.html").read_text()
    one, two = (
        keras.models.load_model(f"{name}.keras", compile=False)
        for name in ("model", "out")
    )
    for before, after in zip(one.get_weights(), two.get_weights(), strict=True):
        np.testing.assert_array_equal(before, after)


def test_a_table_tells_what_was_tried(folder, kerasmem):
    call = kerasmem(
        f"{BASE} --target file_bytes=1MiB --target flops=1e9 --data split.npz"
    )
    assert call.code == 0
    assert "Search for file_bytes up to 1.00 MiB, flops up to 1,000,000,000" in call.out
    assert "unchanged" in call.out


def test_a_preset_is_a_recipe_with_a_name(folder, kerasmem):
    call = kerasmem(f"{BASE} --preset lossless --json")
    assert call.code == 0
    assert call.json["report"]["steps"] == []
    assert call.json["report"]["search"] is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--target file_byte=9 --data data.npz", "Did you mean 'file_bytes'?"),
        ("--target file_bytes=0 --data data.npz", "at least 1"),
        (
            "--target flops=9 --target flops=8 --data data.npz",
            "--target limits flops twice.",
        ),
        ("--target file_bytes --data data.npz", "expected COST=LIMIT, such as"),
        ("--target file_bytes=9", "--target needs data. Next: add --data."),
        ("--target flops=9 --prune 0.5 --data data.npz", "--target with --prune."),
        ("--recipe a.json --preset size", "--recipe with --preset."),
        ("--preset sise", "Did you mean 'size'?"),
        ("--preset size", "--fine-tune-epochs 0"),
        (
            "--prune 0.5 --time-budget 9",
            "--time-budget is only valid for a search. Next: pass",
        ),
        (
            "--target flops=9 --data data.npz --time-budget soon",
            "such as 90, 10m or 2h",
        ),
    ],
)
def test_what_cannot_be_searched_for_is_one_line(folder, refused, options, message):
    assert message in refused(f"{BASE} {options}")


def test_a_gate_that_is_not_met_has_its_own_exit_code_and_writes_the_page(
    folder, refused, kerasmem
):
    line = f"{BASE} --target file_bytes=1 --data split.npz --time-budget 0"
    message = refused(line, code=3)
    assert "No trial meets the target" in message
    assert "`result`" not in message
    call = kerasmem(f"{line} --report nearest.html")
    assert call.code == 3
    assert "nearest.html shows the nearest one." in call.err
    assert "file_bytes" in Path("nearest.html").read_text("utf-8")
    assert not Path("out.keras").exists()


@pytest.mark.parametrize(
    ("text", "expected"), [("90", 90), ("1.5s", 1.5), ("10m", 600), ("2h", 7200)]
)
def test_times_are_read(text, expected):
    from kerasmem.cli.command import seconds

    assert seconds(text) == expected
