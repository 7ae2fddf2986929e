"""Runs to show: one small by hand, and one as large as a page must bear."""

import numpy as np

from kerasmem.records import (
    Block,
    Cause,
    DeviceReading,
    EstimatePart,
    Finding,
    GradientRecord,
    HostReading,
    MemoryRecord,
    PostMortem,
    Remedy,
    Run,
    RunInfo,
    Timeline,
    VariableGradient,
)
from kerasmem.units import MIB

EVIL = "</script><img src=x onerror=\"document.title='broken'\">"
INFO = RunInfo(
    model="tower",
    parameters=1_234_567,
    weight_bytes=4_938_268,
    backend="tensorflow",
    versions={"keras": "3.15.1", "tensorflow": "2.21.0", "kerasmem": "0.1.0"},
    started="2026-03-01T12:00:00+00:00",
    processes=1,
)


def memory_records(epochs, process=0, devices=("GPU:0",)):
    return tuple(
        MemoryRecord(
            epoch,
            None,
            tuple(_device(name, epoch) for name in devices),
            HostReading((900 + 2 * epoch) * MIB, (1100 + 2 * epoch) * MIB, "kernel"),
            process=process,
            time=1_772_366_400.0 + epoch,
        )
        for epoch in range(epochs)
    )


def _device(name, epoch):
    peak = (156 + epoch % 3) * MIB
    first = epoch == 0
    return DeviceReading(
        name,
        current_bytes=8 * MIB,
        peak_bytes=1304 * MIB if first else peak,
        peak_was_reset=True,
        first_step_peak_bytes=1304 * MIB if first else None,
        later_peak_bytes=peak if first else None,
        reserved_bytes=320 * MIB,
        largest_free_bytes=250 * MIB,
    )


def gradient_records(epochs, variables, seed=0):
    """Norms that wander, the early layers' smaller, with one dead variable."""
    rng = np.random.default_rng(seed)
    walk = rng.normal(0, 0.1, (epochs, variables)).cumsum(axis=0)
    depth = np.linspace(-4, 0, variables)
    norms = 10 ** (depth + walk - 0.5 * np.linspace(0, 1, epochs)[:, None])
    norms[:, variables // 2] = 0
    return tuple(
        GradientRecord(
            epoch,
            steps=100,
            norm=float(np.linalg.norm(row)),
            norm_max=float(2 * np.linalg.norm(row)),
            nonfinite_steps=3 if epoch == epochs // 2 else 0,
            variables=tuple(
                VariableGradient(
                    path=f"block_{i // 2}/{('kernel', 'bias')[i % 2]}",
                    steps=10,
                    norm=float(norm),
                    max_abs=float(norm / 3),
                    zero_fraction=1.0 if norm == 0 else 0.25,
                    nonfinite=0,
                    norm_max=float(2 * norm),
                    norm_last=float(norm),
                    update_ratio=float(norm * 1e-3) if epoch else None,
                    gradient_bytes=4000,
                )
                for i, norm in enumerate(row)
            ),
            norm_last=float(np.linalg.norm(row)),
            gradient_bytes=4_938_268,
            own_bytes=4096,
            time=1_772_366_400.0 + epoch,
            loss=2.5 / (1 + epoch),
            val_loss=3.0 / (1 + epoch),
        )
        for epoch, row in enumerate(norms)
    )


def countable_timeline():
    """Eight events over four blocks; 300 bytes were there before.

    After event 4 there are 300 + 256 + 512 + 1024 = 2092 bytes in use: the peak.
    """
    blocks = (
        Block(300, 300, 0, None, None, "Var", "dense", "unknown", "parameter", "[75]"),
        Block(200, 256, 300, 0, 6, "MatMul", "dense", "forward", "activation", "[50]"),
        Block(64, 128, 556, 1, 2, "Cast", None, "forward", "temporary", "[16]"),
        Block(512, 512, 684, 3, 7, "Relu", "relu", "forward", "activation", "[128]"),
        Block(1000, 1024, 1196, 4, 5, "MatMul_1", "dense", "backward", "gradient"),
    )
    return with_events(blocks, "GPU_0_bfc")


def with_events(blocks, allocator, fragmented=True):
    """Return a timeline of blocks, its events' bytes counted from them."""
    opening = sum(b.given_bytes for b in blocks if b.allocated_at is None)
    changes = {}
    for block in blocks:
        if block.allocated_at is not None:
            changes[block.allocated_at] = block.given_bytes
        if block.freed_at is not None:
            changes[block.freed_at] = changes.get(block.freed_at, 0) - block.given_bytes
    events = max(changes, default=-1) + 1
    in_use = (opening + np.cumsum([changes.get(i, 0) for i in range(events)])).tolist()
    top = 1.25 * max([opening, *in_use])
    return Timeline(
        allocator=allocator,
        source="profiler",
        first_step=2,
        steps=1,
        opening_bytes=opening,
        times_ns=tuple(range(0, 1000 * events, 1000)),
        in_use_bytes=tuple(in_use),
        reserved_bytes=(round(top),) * events if fragmented else (),
        fragmentation=tuple((i % 10) / 10 for i in range(events)) if fragmented else (),
        blocks=tuple(blocks),
    )


def large_timeline(allocations, seed=1):
    """Return a timeline of so many allocations, with the waves that steps make."""
    rng = np.random.default_rng(seed)
    size = (2 ** rng.uniform(8, 22, allocations)).astype(int)
    start = np.sort(rng.choice(2 * allocations, allocations, replace=False))
    life = 1 + rng.exponential(400, allocations).astype(int)
    layers = [f"block_{i}/dense_{i % 3}" for i in range(60)]
    categories = ("activation", "gradient", "temporary", "optimizer_state", "input")
    taken, blocks = set(start.tolist()), []
    parameters = [
        Block(
            4 * MIB,
            4 * MIB,
            i * 4 * MIB,
            None,
            None,
            "Var",
            name,
            "unknown",
            "parameter",
            "[1024,1024]",
            "float32",
        )
        for i, name in enumerate(layers[:30])
    ]
    free = [i for i in range(2 * allocations) if i not in taken]
    order = iter(np.searchsorted(free, start + life).tolist())
    used = set()
    for i, begin in enumerate(start.tolist()):
        place = next(order)
        while place < len(free) and place in used:
            place += 1
        used.add(place)
        end = free[place] if place < len(free) else None
        blocks.append(
            Block(int(size[i]) - 3, int(size[i]), 128 * MIB + int(rng.integers(2**31)),
                  begin, end if end is None or end > begin else None,
                  f"op_{i % 977}", layers[i * 60 // allocations],
                  ("forward", "backward", "optimizer")[i % 3],
                  categories[min(4, int(rng.exponential(1)))],
                  f"[{i % 512},128]", "float32")
        )  # fmt: skip
    return with_events((*parameters, *blocks), "GPU_0_bfc")


def post_mortems():
    """Return one of a device, by the estimate, and one of a pipeline, wicked."""
    device = PostMortem(
        cause=Cause(
            kind="device",
            error="ResourceExhaustedError",
            message="OOM when allocating tensor with shape[512,1024] and type float",
            requested_bytes=2 * MIB,
            shape="[512,1024]",
            dtype="float",
            operation="tower_1/dense_1/MatMul",
            layer="tower/dense",
            phase="forward",
            device="GPU:0",
            limit_bytes=64 * MIB,
            in_use_bytes=63 * MIB,
            largest_free_bytes=MIB,
        ),
        model="tower",
        backend="tensorflow",
        batch_size=1024,
        micro_batches=2,
        epoch=0,
        step=3,
        peak_bytes=80 * MIB,
        peak_source="analytic",
        parts=(
            EstimatePart("activation", "tower/dense", 40 * MIB),
            EstimatePart("optimizer_state", "tower/dense", 20 * MIB),
            EstimatePart("parameter", "tower/dense", 10 * MIB),
            EstimatePart("gradient", "tower/head", 6 * MIB),
            EstimatePart("rounding", None, 4 * MIB),
        ),
        variable_bytes=30 * MIB,
        other_bytes=MIB,
        fitting_micro_batches=4,
        fitting_bytes=58 * MIB,
        remedies=(
            Remedy(name="mixed precision", how="keras.config", saves_bytes=22 * MIB),
            Remedy(name="8-bit Adam", how="km.optimizers", saves_bytes=14 * MIB),
        ),
        time=1_772_366_401.0,
    )
    wicked = PostMortem(
        cause=Cause(kind="input pipeline", error=EVIL, message=EVIL, operation=EVIL),
        model=EVIL,
        backend="tensorflow",
        batch_size=8,
        remedies=(Remedy(name=EVIL, how=EVIL),),
        left_out=(EVIL,),
    )
    return device, wicked


def small_run():
    """Return a run with one of everything, and a layer with a wicked name."""
    wicked = Block(256, 256, 2220, None, None, EVIL, EVIL, "unknown", "unknown")
    timeline = countable_timeline()
    return Run(
        info=INFO,
        memory=memory_records(4),
        gradients=gradient_records(4, 6),
        findings=(
            Finding("leak", f"Memory rises at {EVIL}.", 3, EVIL, "MemoryMonitor"),
        ),
        timelines=(timeline, with_events((wicked, *timeline.blocks), "cpu")),
        post_mortems=post_mortems(),
        notes=("The last line of memory.jsonl is cut off and was left out.",),
    )


def large_run(epochs=1000, variables=100, allocations=100_000):
    """Return what a page must bear."""
    return Run(
        info=INFO,
        memory=memory_records(epochs),
        gradients=gradient_records(epochs, variables),
        timelines=(large_timeline(allocations),),
    )
