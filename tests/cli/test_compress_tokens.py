"""`kerasmem compress` of language models, rounded on text and judged by it."""

from pathlib import Path

import numpy as np
import pytest
from scipy.special import log_softmax, rel_entr

import kerasmem as km
from kerasmem.graph.values import to_numpy
from tests.cli.test_compare import LENGTH, by_hand, language_model, logits, some_ids
from tests.models import L, chain

LINE = f"compress lm.keras -o small.keras --data ids.npy --length {LENGTH}"
GPTQ = "--quantize int4 --quantize-rounding gptq"


@pytest.fixture
def rows(folder):
    """Return fifty rows of ids, of which the last five judge."""
    ids = some_ids(50 * LENGTH)
    np.save("ids.npy", ids)
    return ids.reshape(50, LENGTH)


def test_it_is_rounded_on_some_rows_and_judged_by_the_others(rows, kerasmem):
    model = language_model()
    model.save("lm.keras")
    found = kerasmem(
        f"{LINE} {GPTQ} --measure file,weights,metrics,latency --json"
    ).json
    small, choice = km.load_model("small.keras"), km.Quantize("int4", rounding="gptq")
    same = km.compress(model, choice, data=rows[:45]).model
    for weight, own in zip(small.weights, same.weights, strict=True):
        np.testing.assert_array_equal(to_numpy(weight), to_numpy(own))
    before, after = (found["report"][name] for name in ("before", "after"))
    for judged, figures in ((model, before), (small, after)):
        expected = np.exp(-by_hand(judged, rows[45:]).mean())
        assert figures["metrics"]["perplexity"] == pytest.approx(expected, 1e-4)
        assert figures["tokens_per_second"] > 0
    exact, other = (
        log_softmax(logits(each, rows[45:]), axis=-1)[:, :-1] for each in (model, small)
    )
    lost = rel_entr(np.exp(exact), np.exp(other)).sum(-1).mean()
    assert after["metrics"]["kl_divergence"] == pytest.approx(lost, rel=1e-3)
    assert found["report"]["samples"] == 5
    for name, figures in (("lm", before), ("small", after)):
        assert figures["file_bytes"] == Path(f"{name}.keras").stat().st_size


def test_the_table_and_the_page_tell_of_perplexity(rows, kerasmem):
    language_model().save("lm.keras")
    call = kerasmem(f"{LINE} --quantize int8 --report page.html")
    label = f"perplexity ({5 * (LENGTH - 1)} tokens)"
    assert label in call.out
    assert "the last tenth is used for validation" in call.err
    assert label in Path("page.html").read_text("utf-8")


@pytest.mark.one_backend
def test_what_takes_labels_is_refused(rows, refused):
    language_model().save("lm.keras")
    for option in (
        f"{GPTQ} --fine-tune-epochs 1",
        f"{GPTQ} --max-drop 0.1",
        f"{GPTQ} --metric accuracy",
        "--target file_bytes=1KiB",
    ):
        assert "only used for calibration and for perplexity" in refused(
            f"{LINE} {option}"
        )
    assert "--data of tokens needs the model in memory" in refused(
        f"{LINE} {GPTQ} --low-memory"
    )
    np.save("ids.npy", rows[:1])
    assert "Expected at least 2 samples" in refused(f"{LINE} {GPTQ}")
    assert not Path("small.keras").exists()


@pytest.mark.one_backend
def test_a_length_of_rows_that_are_no_tokens_is_refused(folder, refused):
    np.savez("d.npz", x=np.ones((4, 3), "float32"), y=np.ones((4, 1), "float32"))
    for name in ("m.keras", "n.keras"):
        chain((3,), L.Dense(1)).save(name)
    line = "compress m.keras -o small.keras --quantize int8 --length 64"
    assert "--length is only valid for text or token ids" in refused(
        f"{line} --data d.npz"
    )
    assert "--length is only valid for text or token ids" in refused(line)
    compared = "compare m.keras n.keras --data d.npz --length 64"
    assert "--length is only valid for text or token ids" in refused(compared)
