"""`kerasmem estimate`: the memory that a model will need."""

import json
from argparse import ArgumentTypeError, Namespace
from typing import Any

from kerasmem.cli.options import (
    add_batch_size,
    add_command,
    add_imports,
    add_input_shape,
    add_loss,
    add_model,
    at_least,
)
from kerasmem.cli.outcome import Outcome, say
from kerasmem.errors import ConfigError
from kerasmem.units import parse_bytes

_JIT = {"on": True, "off": False}
_ASSUMED = "adam"


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = add_command(
        commands,
        "estimate",
        run,
        "Estimate the memory that a saved model needs to train, and what fills it.",
    )
    add_model(parser)
    add_batch_size(parser, default=32)
    parser.add_argument(
        "--memory-limit",
        type=_size,
        metavar="SIZE",
        help="say whether it fits: bytes, or a size such as 8GiB",
    )
    parser.add_argument(
        "--optimizer", help="its Keras name; the one in the file by default, else adam"
    )
    parser.add_argument("--backend", help="tensorflow, jax or torch; the running one")
    parser.add_argument("--device", default="gpu", help="gpu (default) or cpu")
    parser.add_argument(
        "--method",
        default="auto",
        help="analytic, traced, or auto (default): analytic if the model has a graph",
    )
    parser.add_argument("--dtype-policy", help="assume one, such as mixed_bfloat16")
    parser.add_argument(
        "--jit", choices=_JIT, help="compiled by XLA or not; as the model is by default"
    )
    add_loss(parser)
    parser.add_argument(
        "--predict", action="store_true", help="inference instead of training"
    )
    add_input_shape(parser)
    parser.add_argument(
        "--layers", type=at_least(0), default=10, help="how many to list (10)"
    )
    add_imports(parser)


def run(options: Namespace) -> Outcome:
    """Return the estimate: per category, the largest layers, and whether it fits."""
    from kerasmem.cli.judging import compile_for
    from kerasmem.files.described import described_model
    from kerasmem.memory.estimate import estimate_memory
    from kerasmem.report.estimate import (
        category_table,
        estimate_summary,
        largest_layers_table,
        verdict_line,
    )

    with described_model(options.model) as model:
        compile_for(model, options.loss, ())
        optimizer = options.optimizer
        assumes = not (options.predict or optimizer or _has_optimizer(model))
        estimate = estimate_memory(
            model,
            options.batch_size,
            optimizer=_ASSUMED if assumes else optimizer,
            dtype_policy=options.dtype_policy,
            jit_compile=_JIT.get(options.jit),
            backend=options.backend,
            training=not options.predict,
            device=options.device,
            method=options.method,
            input_shape=options.input_shapes,
        )
    data = json.loads(estimate.to_json()) | {"model": options.model}
    what = "predict" if options.predict else "training"
    if assumes:
        data["assumed_optimizer"] = _ASSUMED
        say(
            f"{options.model} was saved without an optimizer: {_ASSUMED} is assumed. "
            "Another: --optimizer NAME; none: --predict."
        )
    title = (
        f"{options.model}, {what}, batch of {options.batch_size}, {estimate.backend}, "
        f"{estimate.device}, method {estimate.method}"
    )
    tables: list[Any] = [
        category_table(estimate, title),
        largest_layers_table(estimate, options.layers),
        estimate_summary(estimate),
    ]
    if options.memory_limit is not None:
        data["memory_limit_bytes"] = options.memory_limit
        data["verdict"] = estimate.verdict(options.memory_limit)
        tables.append(verdict_line(estimate, options.memory_limit))
    return Outcome(data, tuple(tables))


def _has_optimizer(model: Any) -> bool:
    return bool(model.compiled and model.optimizer)


def _size(text: str) -> int:
    try:
        return parse_bytes(int(text) if text.isdecimal() else text)
    except ConfigError as error:
        raise ArgumentTypeError(str(error)) from error
