"""The numbers that the page's charts and tables are made of are those recorded."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kerasmem.callbacks.run_log import epoch_figures
from kerasmem.extras.trackers import run_scalars
from kerasmem.records import (
    GradientRecord,
    HostReading,
    MemoryRecord,
    Run,
    Timeline,
)
from kerasmem.report.page.panels import Packer, Series, thinned
from kerasmem.report.run.epochs import continued, later_fits, numbered, placed
from kerasmem.report.run.gradients import gradient_flow
from kerasmem.report.run.headline import headline
from kerasmem.report.run.memory import memory_panels, memory_tables
from kerasmem.report.run.page import (
    loss_panel,
    loss_table,
    metric_panels,
    run_page_html,
)
from kerasmem.report.run.timelines import (
    MOST_BLOCKS,
    chosen,
    course_table,
    peak_table,
    timeline_columns,
)
from kerasmem.units import MIB, format_bytes
from tests.report.packed import unpacked
from tests.report.runs import countable_timeline, gradient_records, memory_records

pytestmark = pytest.mark.one_backend

few = settings(derandomize=True, max_examples=25, deadline=None)


@few
@given(st.lists(st.integers(-(2**53), 2**53)), st.booleans())
def test_whole_numbers_come_back_as_they_were(values, rising):
    steps = np.diff(values, prepend=0) if values else []
    if rising and np.abs(steps).max(initial=0) > 2**53:
        return  # a step that no float holds; bytes and events are far smaller
    packer = Packer()
    reference = packer.whole(values, rising=rising)
    assert unpacked(packer.pack({"x": reference}))["x"] == values


@few
@given(st.lists(st.floats(-(2.0**99), 2.0**99, width=32)))
def test_other_numbers_keep_seven_digits(values):
    packer = Packer()
    found = unpacked(packer.pack({"x": packer.place(values)}))["x"]
    assert found == pytest.approx(values, rel=1e-6, abs=1e-37)


def test_what_is_no_number_stays_none():
    packer = Packer()
    found = unpacked(packer.pack({"x": packer.place([float("nan"), float("inf")])}))
    assert np.isnan(found["x"][0])
    assert found["x"][1] == float("inf")


def test_bytes_take_no_more_room_than_they_need():
    packer = Packer()
    packer.whole([0, 255])
    packer.whole([2**40, 2**40 + 1], rising=True)
    packer.whole(range(10**6, 10**6 + 300), rising=True)
    assert [column["type"] for column in packer._columns] == [
        "uint8",
        "float64",
        "uint32",
    ]


def test_a_second_fit_goes_on_where_the_first_ended():
    assert continued([0, 1, 2, 0, 1]) == [0, 1, 2, 3, 4]
    assert continued([3, 4, 5]) == [3, 4, 5]


def reading(epoch, batch=None, phase="train", size=1):
    return MemoryRecord(epoch, batch, (), HostReading(size, size, "kernel"), phase)


def test_a_batch_lies_inside_of_its_epoch():
    records = [
        reading(0, 1),
        reading(0, 3),
        reading(0, None, "validation"),
        reading(0),
        reading(1, 1),
        reading(1),
        reading(0, 1),
        reading(0),
        reading(5, None, "predict"),
    ]
    assert [x for x, _ in placed(records)] == [0.5, 1, 1, 1, 1.5, 2, 2.5, 3]


def two_fits(first=2, second=3):
    """Two runs of one script with the same folder; the second takes more memory."""
    memory = [*memory_records(first), *memory_records(second)]
    memory[-1] = replace(
        memory[-1],
        devices=(replace(memory[-1].devices[0], peak_bytes=2000 * MIB),),
        host=HostReading(1000 * MIB, 3000 * MIB, "kernel"),
    )
    gradients = [*gradient_records(first, 2), *gradient_records(second, 2, seed=1)]
    return Run(memory=tuple(memory), gradients=tuple(gradients))


def test_epochs_of_two_fits_are_counted_on_everywhere():
    run = two_fits()
    details = {figure.label: figure.detail for figure in headline(run)}
    assert details["Device peak"] == "GPU:0, epoch 5"
    assert details["Host peak"] == "epoch 5"
    devices, host = memory_tables(run.memory)
    numbers = ["1", "2", "3", "4", "5"]
    assert [row[3] for row in devices.rows] == numbers
    assert [row[2] for row in host.rows] == numbers
    assert [row[0] for row in loss_table(run).rows] == numbers
    assert memory_panels(run.memory)[0].lines[0].x == [1, 2, 3, 4, 5]


def test_it_is_told_where_a_later_fit_begins_and_norms_are_compared_within_it():
    run = two_fits()
    assert later_fits(run) == [3]
    assert later_fits(replace(run, gradients=())) == [3]
    figures = {figure.label: figure for figure in headline(run)}
    begin, *_, last = (record.norm for record in run.gradients[2:])
    assert figures["Consecutive fits"].value == "2"
    assert figures["Consecutive fits"].detail.endswith("with epoch 3")
    assert figures["Gradient norm, last"].value == f"{last:.3g}"
    assert figures["Gradient norm, last"].detail == f"first of this fit {begin:.3g}"
    assert "Later fits start with epoch 3" in run_page_html(run)


def test_a_fit_that_goes_on_from_an_epoch_is_no_later_one():
    memory = memory_records(5)
    run = Run(memory=memory, gradients=gradient_records(5, 2))
    assert later_fits(run) == []
    assert "Later fits start" not in run_page_html(run)
    again = Run(memory=(*memory, *memory[3:]))
    assert later_fits(again) == [6]
    assert [number for number, _ in numbered(again.memory)] == [*range(1, 8)]


def test_a_peak_that_the_allocator_does_not_count_is_no_peak_of_0_bytes():
    small = replace(memory_records(1)[0].devices[0], peak_bytes=0, later_peak_bytes=0)
    for complete in (True, False):
        device = replace(small, name="CPU:0", complete=complete)
        run = Run(memory=(replace(memory_records(1)[0], devices=(device,)),))
        found = [f for f in headline(run) if f.label == "Device peak"]
        assert [f.value for f in found] == ["0 B" if complete else "-"]
        told = "only large requests are counted" in found[0].detail
        assert told is not complete
        charts = [panel.title for panel in memory_panels(run.memory)]
        assert ("Device memory, CPU:0" in charts) is complete
        titles = [table.title for table in memory_tables(run.memory)]
        assert any("devices" in title for title in titles) is complete
        tags = [scalar.tag for scalar in run_scalars(run)[0]]
        assert any("CPU:0" in tag for tag in tags) is complete


def test_a_panel_has_the_bytes_of_every_epoch():
    gpu, host = memory_panels(memory_records(3))
    lines = {line.name: line for line in gpu.lines}
    assert lines["peak"].y == [156 * MIB, 157 * MIB, 158 * MIB]
    assert lines["in use"].y == [8 * MIB] * 3
    assert lines["pool"].y == [320 * MIB] * 3
    assert lines["peak"].x == [1, 2, 3]
    assert {line.name: line.y[-1] for line in host.lines} == {
        "peak": 1104 * MIB,
        "resident": 904 * MIB,
    }
    assert "peak: from 156 MiB to 158 MiB, at most 158 MiB." in gpu.words


def test_calls_of_predict_and_evaluate_have_panels_by_their_numbers():
    def call(phase, resident):
        host = HostReading(resident, resident + MIB, "kernel")
        return MemoryRecord(0, None, (), host, phase=phase)

    calls = [call("predict", n * MIB) for n in (10, 13, 16)]
    records = [*memory_records(2), *calls, call("evaluate", MIB)]
    _, _, panel = memory_panels(records)  # one call of evaluate is no course
    assert (panel.title, panel.step) == ("Call by call of predict: host memory", "call")
    assert {line.name: (line.x, line.y) for line in panel.lines} == {
        "peak": ([1, 2, 3], [11 * MIB, 14 * MIB, 17 * MIB]),
        "resident": ([1, 2, 3], [10 * MIB, 13 * MIB, 16 * MIB]),
    }


def test_a_first_step_far_above_is_told_and_does_not_flatten_the_rest():
    gpu, _ = memory_panels(memory_records(3))
    assert "first step" not in {line.name for line in gpu.lines}
    assert gpu.notes[0] == "Not drawn because of its size: first step, 1.27 GiB."


def test_every_device_of_every_process_has_a_panel():
    records = [
        *memory_records(2, process=0, devices=("GPU:0", "GPU:1")),
        *memory_records(2, process=1),
    ]
    assert [panel.title for panel in memory_panels(records)] == [
        "Device memory, GPU:0, process 0",
        "Device memory, GPU:1, process 0",
        "Host memory, process 0",
        "Device memory, GPU:0, process 1",
        "Host memory, process 1",
    ]


def test_devices_on_one_allocator_share_a_panel():
    first, second = memory_records(1, devices=("CPU:0", "CPU:1"))[0].devices
    shared = (first, replace(second, shares_with="CPU:0"))
    panels = memory_panels([MemoryRecord(0, None, shared, None)])
    assert [panel.title for panel in panels] == ["Device memory, CPU:0"]
    assert "Shares one allocator with CPU:1." in panels[0].notes


def test_the_loss_has_a_panel_from_whichever_monitor_was_told():
    records = memory_records(3)
    losses = [replace(r, loss=2.0 / (1 + r.epoch), val_loss=3.0) for r in records]
    panel = loss_panel(Run(memory=(*losses, *losses[:1])))
    assert [(line.name, line.x, line.y) for line in panel.lines] == [
        ("loss", [1, 2, 3, 4], [2.0, 1.0, 2.0 / 3, 2.0]),
        ("validation", [1, 2, 3, 4], [3.0] * 4),
    ]
    assert "loss: from 2 to 2, at most 2." in panel.words
    assert loss_panel(Run(memory=records)) is None
    gradients = gradient_records(3, 2)
    both = loss_panel(Run(memory=tuple(losses), gradients=gradients))
    assert both.lines[0].y == [2.5, 1.25, 2.5 / 3]


def test_every_metric_has_a_chart_with_its_values_in_validation():
    logs = [{"accuracy": 0.5, "val_accuracy": 0.25}, {"accuracy": 0.75, "auc": 1.0}]
    records = [
        replace(record, **epoch_figures({"loss": 1.0, "device_mib": 3.0, **values}))
        for record, values in zip(memory_records(2), logs, strict=True)
    ]
    records = [MemoryRecord.from_json(record.to_json()) for record in records]
    panels = metric_panels(Run(memory=tuple(records)))
    assert [panel.title for panel in panels] == ["accuracy", "auc"]
    assert [(line.name, line.x, line.y) for line in panels[0].lines] == [
        ("training", [1, 2], [0.5, 0.75]),
        ("validation", [1], [0.25]),
    ]
    page = run_page_html(Run(memory=tuple(records)))
    assert "training: from 0.5 to 0.75" in page


def test_the_models_own_name_is_left_out_of_paths():
    assert gradient_flow(gradient_records(1, 2), "block_0").paths == ("kernel", "bias")
    assert gradient_flow(gradient_records(1, 1), "block").paths == ("block_0/kernel",)
    timeline = countable_timeline()
    inside = replace(timeline.blocks[0], layer="model/dense")
    named = replace(timeline, blocks=(inside, *timeline.blocks[1:]))
    assert peak_table(named, "model") == peak_table(timeline)
    packers = Packer(), Packer()
    kinds = timeline_columns(named, packers[0], "model")["kinds"]
    assert kinds == timeline_columns(timeline, packers[1])["kinds"]


def test_validation_has_a_line_of_its_own():
    (panel,) = memory_panels([reading(0, None, "validation", 7), reading(0, size=5)])
    lines = {line.name: line.y for line in panel.lines}
    assert lines == {"validation peak": [7], "peak": [5], "resident": [5]}


def test_a_long_line_keeps_its_lows_and_highs():
    y = list(range(100_000))
    y[12_345], y[54_321] = 10**6, -(10**6)
    short = thinned(Series("in use", "within", [float(i) for i in y], y))
    assert len(short.y) <= 5000
    assert (max(short.y), min(short.y)) == (10**6, -(10**6))
    assert short.y[-1] == 99_999


def test_a_gradient_keeps_its_place():
    records = gradient_records(5, 4)
    flow = gradient_flow(records)
    assert flow.columns == flow.epochs == (1, 2, 3, 4, 5)
    for row, path in enumerate(flow.paths):
        for column, record in enumerate(records):
            variable = next(v for v in record.variables if v.path == path)
            assert flow.measures["norm"][row, column] == variable.norm
    assert np.isnan(flow.measures["update_ratio"][:, 0]).all()


def test_an_epoch_without_variables_is_no_column():
    first, _, third = gradient_records(3, 2)
    flow = gradient_flow([first, GradientRecord(1, 100, 1.0, 2.0, 0), third])
    assert flow.epochs == (1, 2, 3)
    assert flow.columns == (1, 3)


def test_more_cells_than_a_page_bears_are_merged_and_it_says_so(monkeypatch):
    monkeypatch.setattr("kerasmem.report.run.gradients._MOST_CELLS", 8)
    records = gradient_records(5, 4)
    flow = gradient_flow(records)
    assert (flow.merged, flow.columns) == (3, (1, 4))
    of_first = [r.variables[0] for r in records]
    assert flow.measures["norm"][0] == pytest.approx(
        [
            np.mean([v.norm for v in of_first[:3]]),
            np.mean([v.norm for v in of_first[3:]]),
        ]
    )
    assert flow.measures["norm_max"][0, 0] == max(v.norm_max for v in of_first[:3])
    ratios = [v.update_ratio for v in of_first[1:3]]  # the first epoch has none
    assert flow.measures["update_ratio"][0, 0] == pytest.approx(np.mean(ratios))


def test_the_peak_table_has_the_bytes_of_the_peak():
    table = peak_table(countable_timeline())
    assert table.title == "in use at the peak, 2.04 KiB in all"  # 2092 bytes
    assert table.rows[0] == ("dense", "gradient", "1.00 KiB", "1000 B", "1", "48.9 %")
    assert {row[:3] for row in table.rows} == {
        ("dense", "gradient", "1.00 KiB"),
        ("relu", "activation", "512 B"),
        ("dense", "parameter", "300 B"),
        ("dense", "activation", "256 B"),
    }


def test_the_course_table_follows_every_event():
    rows = course_table(countable_timeline()).rows
    in_use = [300, 556, 684, 556, 1068, 2092, 1068, 812, 300]
    assert [row[2] for row in rows] == [format_bytes(size) for size in in_use]
    assert rows[5][0] == "5 (peak)"
    activation = [0, 256, 256, 256, 768, 768, 768, 512, 0]
    assert [row[6] for row in rows] == [format_bytes(size) for size in activation]


def test_the_browser_gets_every_block_and_every_event():
    timeline = countable_timeline()
    packer = Packer()
    found = unpacked(packer.pack(timeline_columns(timeline, packer)))
    assert found["given"] == [block.given_bytes for block in timeline.blocks]
    assert found["requested"] == [block.requested_bytes for block in timeline.blocks]
    assert found["start"] == [0, 1, 2, 4, 5]
    assert found["life"] == [9, 6, 1, 4, 1]
    assert found["total"] == [timeline.opening_bytes, *timeline.in_use_bytes]
    assert found["time"] == [0, *timeline.times_ns]
    kinds = [found["kinds"][i] for i in found["kind"]]
    assert kinds[1] == ["MatMul", "dense", "forward", "activation", "[50]", ""]


def test_a_window_without_an_event_is_still_shown():
    empty = Timeline("cpu", "profiler", 0, 1, 0, (), (), (), (), ())
    assert peak_table(empty).rows == ()
    assert len(course_table(empty).rows) == 1


def test_windows_that_do_not_fit_are_left_out_and_counted():
    small = countable_timeline()
    large = replace(
        small, opening_bytes=5000, blocks=small.blocks[:1] * (MOST_BLOCKS - 3)
    )
    kept, note = chosen([small, large, small])
    assert kept == [large]
    assert note == "Showing the 1 of 3 windows with the highest peaks."
    assert chosen([small, small])[1] == ""
