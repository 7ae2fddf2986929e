"""The pictures of `.plot()`: their figures are the records', readable on any ground."""

import re

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.errors import ConfigError, OutputError
from kerasmem.records import CompressionReport, EstimatePart, MemoryEstimate
from kerasmem.records import ModelFigures as Figures
from kerasmem.report.plots import COLORS, TEXT, comparison_plot, timeline_plot
from kerasmem.units import MIB, format_bytes
from tests.report.runs import countable_timeline, gradient_records, memory_records

pytestmark = pytest.mark.one_backend

DARK = "#111111"  # the ground of a notebook's dark theme


def luminance(color):
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts
    ]
    return float(np.dot([0.2126, 0.7152, 0.0722], linear))


def contrast(one, other):
    """By the Web Content Accessibility Guidelines."""
    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("ground", ["#ffffff", DARK])
def test_letters_and_lines_stand_out_on_either_ground(ground):
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast(TEXT, ground) > 4.3
    assert min(contrast(color, ground) for color in COLORS.values()) > 3


def drawn(plot):
    """The picture as a notebook gets it."""
    svg = plot._repr_svg_()
    assert "<svg" in svg
    return svg


def test_an_estimate_shows_its_categories_and_its_largest_layers():
    parts = (
        EstimatePart("activation", "conv", 3 * MIB),
        EstimatePart("parameter", "conv", MIB),
        EstimatePart("parameter", "head", 2 * MIB),
    )
    sizes = (6 * MIB, 5 * MIB, 7 * MIB)
    rest = (parts, 8, "tensorflow", True, "cpu", True, "analytic")
    plot = MemoryEstimate(*sizes, *rest).plot(layers=1)
    assert repr(plot) == (
        "<Plot: estimated peak 6.00 MiB, between 5.00 MiB and 7.00 MiB, batch of 8>"
    )
    categories, layers = plot.figure.axes
    assert widths(categories) == {"activation": 3, "parameter": 3}
    assert widths(layers) == {"conv": 4}
    assert "6.00 MiB" in drawn(plot)


def widths(axes):
    names = [label.get_text() for label in axes.get_yticklabels()]
    return dict(zip(names, [bar.get_width() for bar in axes.patches], strict=True))


def test_a_result_shows_what_is_left_as_a_share():
    before = Figures(4096, 4000, 1000, 1000, latency_ms=2.0, metrics={"accuracy": 0.9})
    after = Figures(1024, 1000, 1000, 250, latency_ms=3.0, metrics={"accuracy": 0.875})
    plot = comparison_plot(CompressionReport(before, after))
    assert widths(plot.figure.axes[0]) == {
        "file": 25,
        "weights in RAM": 25,
        "nonzero weights": 25,
        "time of a batch": 150,
    }
    assert "file 4.00 KiB → 1.00 KiB; " in repr(plot)
    assert "accuracy 0.9 → 0.875" in drawn(plot)


def test_a_compression_has_its_plot():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8)])
    result = km.compress(model, km.Quantize("int8"))
    before, after = result.report.before, result.report.after
    sizes = f"file {format_bytes(before.file_bytes)} → {format_bytes(after.file_bytes)}"
    assert sizes in repr(result.plot())


def lines(axes):
    return {line.get_label(): list(line.get_ydata()) for line in axes.get_lines()}


def test_monitors_show_their_records():
    memory, gradients = km.callbacks.MemoryMonitor(), km.callbacks.GradientMonitor()
    memory.records += memory_records(3)
    gradients.records += gradient_records(3, 2)
    device, host = memory.plot().figure.axes
    assert lines(device)["peak"] == [156, 157, 158]
    assert lines(host)["peak"] == [1100, 1102, 1104]
    loss, norm = gradients.plot().figure.axes
    assert lines(loss)["loss"] == [record.loss for record in gradients.records]
    assert lines(norm)["mean"] == [record.norm for record in gradients.records]
    assert norm.get_yscale() == "log"
    svg = drawn(gradients.plot())
    assert "Global L2 norm" in svg
    assert "math" not in svg  # numbers are written plainly


def test_a_timeline_shows_its_fullest_allocator_and_the_peak():
    timeline = countable_timeline()
    plot = timeline_plot([timeline])
    (axes,) = plot.figure.axes
    top = max(
        path.vertices[:, 1].max() for c in axes.collections for path in c.get_paths()
    )
    known = sum(block.given_bytes for block in timeline.live(timeline.peak_event))
    assert top == pytest.approx(known / MIB)
    assert re.search(r"peak [\d.]+ \w+>$", repr(plot))


def test_the_same_picture_is_the_same_file(tmp_path):
    for name in ("a.svg", "b.svg"):
        timeline_plot([countable_timeline()]).save(tmp_path / name)
    first, second = ((tmp_path / name).read_bytes() for name in ("a.svg", "b.svg"))
    assert first == second
    timeline_plot([countable_timeline()]).save(tmp_path / "c.png")
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
    timeline_plot([countable_timeline()]).save(tmp_path / "c.JPG")
    assert (tmp_path / "c.JPG").read_bytes().startswith(b"\xff\xd8")


def test_what_cannot_be_drawn_is_one_clear_error(tmp_path):
    monitor = km.callbacks.MemoryMonitor()
    with pytest.raises(ConfigError, match="Nothing was recorded yet"):
        monitor.plot()
    with pytest.raises(ConfigError, match="There is no timeline"):
        km.callbacks.MemoryTimeline().plot()
    with pytest.raises(OutputError, match="Expected a suffix of"):
        timeline_plot([countable_timeline()]).save(tmp_path / "a.doc")
