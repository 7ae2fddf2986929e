"""`kerasmem estimate` and `tune`: training memory, estimated or measured."""

import json
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kerasmem.checks import BACKENDS
from kerasmem.cli.command import (
    IMPORT,
    INPUT_SHAPE,
    LOSS,
    MODEL,
    CommandResult,
    at_least,
    batch_of,
    checked,
    command,
    option,
    say,
)
from kerasmem.errors import ConfigError
from kerasmem.units import parse_bytes

_JIT = {"on": True, "off": False}
_ASSUMED = "adam"
_OPTIMIZER = option(
    "--optimizer", help="Keras name (default: the saved optimizer, or adam)."
)


@command(
    "estimate",
    "Estimate the memory that a saved model needs for training, by category.",
    MODEL,
    batch_of(32),
    option(
        "--memory-limit",
        type=checked(parse_bytes, "bytes, or a size such as 8GiB"),
        metavar="SIZE",
        help="Report whether the step fits: bytes, or a size such as 8GiB.",
    ),
    _OPTIMIZER,
    option("--backend", help=f"{', '.join(BACKENDS)} (default: the current backend)."),
    option(
        "--device",
        help="gpu, cpu, or a GPU name such as h200. Method plan needs a GPU name, and "
        "measured needs cpu (default: gpu, also on machines without one; cpu for "
        "method measured).",
    ),
    option(
        "--method",
        default="auto",
        help="analytic, traced, plan, measured or auto (default: auto, which is "
        "analytic if the model has a graph). plan compiles the step for a GPU and "
        "needs kerasmem[plans]. measured runs real steps of small batches on this CPU.",
    ),
    option("--dtype-policy", help="Dtype policy to assume, such as mixed_bfloat16."),
    option(
        "--quantize",
        metavar="SCHEME",
        help="Weights to assume: int8, int8-dynamic, int4, int3, nf4, float16 or "
        "bfloat16 (default: as saved).",
    ),
    option(
        "--lora",
        type=at_least(1),
        metavar="RANK",
        help="Train only LoRA weights of this rank, for KerasHub models.",
    ),
    option(
        "--jit",
        choices=_JIT,
        help="XLA compilation (default: as the model is compiled).",
    ),
    LOSS,
    option("--predict", action="store_true", help="Inference instead of training."),
    option(
        "--generate",
        type=at_least(1),
        metavar="TOKENS",
        help="Generation instead of training, with a KerasHub CausalLM. Total number "
        "of tokens per sequence, including the prompt.",
    ),
    INPUT_SHAPE,
    option(
        "--length",
        type=at_least(1),
        metavar="N",
        help="Number of tokens per sequence: --input-shape N for every input that has "
        "an open length, such as those of a language model.",
    ),
    option(
        "--layers",
        type=at_least(0),
        default=10,
        help="Number of layers to list (default: 10).",
    ),
    IMPORT,
)
def estimate(options: Namespace) -> CommandResult:
    """Estimate the memory by category and layer, and whether the step fits."""
    from kerasmem.cli.evaluation import compile_for
    from kerasmem.memory.estimate import estimate_memory
    from kerasmem.report.memory import (
        category_table,
        estimate_summary,
        largest_layers_table,
        verdict_line,
    )

    if options.predict and options.generate:
        raise ConfigError(
            "Expected either --predict or --generate. Received: --predict and "
            f"--generate {options.generate}."
        )
    with _assumed(options) as model:
        compile_for(model, options.loss, ())
        optimizer = options.optimizer
        has_optimizer = bool(model.compiled and model.optimizer)
        trains = not (options.predict or options.generate)
        assumes = trains and not (optimizer or has_optimizer)
        result = estimate_memory(
            model,
            options.batch_size,
            optimizer=_ASSUMED if assumes else optimizer,
            dtype_policy=options.dtype_policy,
            jit_compile=_JIT.get(options.jit),
            backend=options.backend,
            training=trains,
            generate=options.generate,
            device=options.device,
            method=options.method,
            input_shape=_shapes(options, model),
        )
    data = json.loads(result.to_json()) | {"model": options.model}
    if assumes:
        data["assumed_optimizer"] = _ASSUMED
        say(
            f"{options.model} was loaded without an optimizer: {_ASSUMED} is assumed. "
            "Next: pass --optimizer NAME, or --predict for inference."
        )
    assumptions = [f"weights in {options.quantize}"] if options.quantize else []
    assumptions += [f"LoRA of rank {options.lora}"] if options.lora else []
    how = [
        result.doing,
        *assumptions,
        f"batch of {options.batch_size}",
        result.backend,
    ]
    title = (
        f"{options.model}, {', '.join(how)}, {result.device}, method {result.method}"
    )
    tables: list[Any] = [
        category_table(result, title),
        largest_layers_table(result, options.layers),
        estimate_summary(result),
    ]
    if options.memory_limit is not None:
        data["memory_limit_bytes"] = options.memory_limit
        data["verdict"] = result.verdict(options.memory_limit)
        tables.append(verdict_line(result, options.memory_limit))
    return CommandResult(data, tuple(tables))


def _shapes(options: Namespace, model: Any) -> Any:
    """Return the input shapes of `--input-shape` or `--length`."""
    from kerasmem.files.data.check import input_names

    if options.length is None:
        return options.input_shapes
    if options.input_shapes:
        raise ConfigError(
            "Expected either --length or --input-shape. Received: --length "
            f"{options.length} and --input-shape."
        )
    # A subclassed model has no inputs.
    inputs: Sequence[Any] = getattr(model, "inputs", None) or ()
    names = input_names(model) if inputs else ()
    shapes = {n: x.shape[1:] for n, x in zip(names, inputs, strict=True)}
    lengths = {n: (options.length,) for n, shape in shapes.items() if shape == (None,)}
    if not lengths:
        raise ConfigError(
            "Expected inputs of shape (batch, length) with an open length. Received: "
            f"--length {options.length} with inputs of shape "
            f"{[(None, *shape) for shape in shapes.values()]}. Next: omit --length, or "
            "pass --input-shape."
        )
    return lengths


@contextmanager
def _assumed(options: Namespace) -> Iterator[Any]:
    """Yield the model with the assumed weights and LoRA.

    A preset is described by its configs, so no weight file is opened.
    """
    from kerasmem.compression.quantize import Quantize
    from kerasmem.compression.quantize.apply import replace_weights, weight_plan
    from kerasmem.compression.quantize.config import MIXED, STATIC
    from kerasmem.files.described import (
        described_model,
        described_preset,
        without_values,
    )
    from kerasmem.files.preset import is_preset

    path = Path(options.model)
    open_model = described_preset if is_preset(path) else described_model
    with open_model(path) as model, without_values():
        if options.quantize:
            if options.quantize in (STATIC, MIXED):
                raise ConfigError(
                    "The scheme needs calibration samples or a budget. "
                    f"Received: --quantize {options.quantize}. Next: compress the "
                    "model, and estimate the compressed file."
                )
            replace_weights(model, weight_plan(model, Quantize(options.quantize)))
        if options.lora:
            _enable_lora(model, options.lora)
        yield model


def _enable_lora(model: Any, rank: int) -> None:
    backbone = getattr(model, "backbone", model)
    if not callable(getattr(backbone, "enable_lora", None)):
        raise ConfigError(
            "Keras supports LoRA for KerasHub models and for single layers. Received: "
            f"--lora with a {type(model).__name__}. Next: call enable_lora() of its "
            "layers in a script, and km.estimate_memory(model, ...)."
        )
    backbone.enable_lora(rank)


@command(
    "tune",
    "Measure peak memory and step time of a training under each option.",
    MODEL,
    batch_of(32),
    LOSS,
    _OPTIMIZER,
    option(
        "--only",
        action="append",
        default=[],
        metavar="OPTION",
        help="Substring of the options to try: jit, mixed, remat, accum, parallel "
        "(several devices), layout or folding (TensorFlow) (default: all). Repeatable.",
    ),
    INPUT_SHAPE,
    IMPORT,
)
def tune(options: Namespace) -> CommandResult:
    """Return the cost of each option and a recommendation."""
    from kerasmem.cli.evaluation import compile_for
    from kerasmem.extras.tune import leave_room
    from kerasmem.extras.tune import tune as measure_options
    from kerasmem.files import load_model
    from kerasmem.report.benchmarks import (
        failure_lines,
        spread_line,
        variants_table,
    )

    leave_room()
    model = load_model(options.model)
    compile_for(model, options.loss, ())
    if not model.compiled:
        raise ConfigError(
            "Training needs a loss and an optimizer. Expected: a compiled "
            f"model. Received: {options.model!r}, not compiled. Next: pass "
            "--loss NAME, and --optimizer NAME (default: adam)."
        )
    settings = {
        "optimizer": options.optimizer,
        "input_shape": options.input_shapes,
        "only": options.only,
        "say": say,
    }
    tuning = measure_options(model, options.batch_size, **settings)
    title = (
        f"{options.model}, training, batch of {options.batch_size}, {tuning.backend}, "
        f"{tuning.device}, jit {'on' if tuning.jit_compile else 'off'}, "
        f"{tuning.dtype_policy}"
    )
    tables = [
        variants_table(tuning, title),
        failure_lines(tuning),
        spread_line(tuning),
        tuning.recommendation,
    ]
    data = json.loads(tuning.to_json()) | {"model": options.model}
    return CommandResult(data, tuple(table for table in tables if table))
