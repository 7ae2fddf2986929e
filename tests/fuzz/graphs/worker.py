"""A process that takes graphs, one a line, and says what became of each."""

import os
import traceback
import warnings
from typing import Any

import keras
import numpy as np

from kerasmem.errors import KerasMemError
from tests.fuzz.graphs.case import (
    VARIANTS,
    Case,
    UnfitError,
    WrongValueError,
    flat_weights,
    varied,
)
from tests.fuzz.graphs.laws import IN_PLACE, LAWS, OF_GRAPHS
from tests.fuzz.graphs.models import build, outputs, sample
from tests.fuzz.graphs.operation import Draw
from tests.fuzz.graphs.program import generate
from tests.fuzz.outcome import Outcome, line_of

_NOTHING = (
    "no channels that could be removed",
    "has nothing to",
    "can be folded",
    "no two layers to equalize",
    "nothing in the model",
)
_DEFECTS = ("defect of kerasmem", "report it")


MOST_NOISE = 0.02
"""Of a model that a rounding of its weights does more to, nothing can be told."""


def drawn(seed: int) -> dict[str, Any]:
    """Return the case of a seed: a program, a law, a way to the model."""
    draw = Draw(f"case {seed}")
    program = generate(seed)
    own_class = program["form"] in ("constructor", "subclassed") and draw.flag(0.9)
    shares = {
        name: share
        for name, (share, _) in LAWS.items()
        if not (own_class and name in OF_GRAPHS)
    }
    return {
        "program": program,
        "law": draw.choices(list(shares), shares.values())[0],
        "variant": draw.choice(VARIANTS),
        "number": draw.getrandbits(31),
    }


def run(case: dict[str, Any]) -> Outcome:
    """Put one model through one law."""
    warnings.simplefilter("ignore")
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(7)
    try:
        return _run(case)
    except UnfitError as error:
        return Outcome("unfit", str(error))
    except WrongValueError as error:
        return Outcome("wrong value", f"{case['law']}: {error}")
    except KerasMemError as error:
        text = " ".join(str(error).split())
        if any(words in text for words in _DEFECTS):
            return Outcome("wrong value", f"{case['law']}: {text}")
        if any(words in text for words in _NOTHING):
            return Outcome("nothing to do", case["law"])
        return Outcome("refused", f"{case['law']}: {text}")
    except Exception as error:  # noqa: BLE001 - this is what is looked for
        place = line_of(error)
        text = f"{case['law']}: {type(error).__name__} at {place}: {error}"
        return Outcome("exception", text, traceback.format_exc())


def _run(case: dict[str, Any]) -> Outcome:
    program = case["program"]
    original, x, y = _fit(program)
    model = _varied(original, case["variant"])
    given = Case(model, program, Draw(case["number"]), x, y)
    given.noise = given.noise_of(original, x, y)
    if not given.noise < MOST_NOISE:
        raise UnfitError("chaotic")
    if model is not original:
        given.check_equal(y, outputs(model, x), given.noise, case["variant"])
    before = flat_weights(model)
    LAWS[case["law"]][1](given)
    if not case["law"].startswith(IN_PLACE):
        for old, new in zip(before, flat_weights(model), strict=True):
            if not np.array_equal(old, new):
                raise WrongValueError("the model that was handed in has changed")
    return Outcome("ok", case["law"])


def _fit(program: dict[str, Any]) -> tuple[Any, Any, list[np.ndarray]]:
    """Return the model of a program, a batch, and its answer, if it has a sane one."""
    try:
        model = build(program)
        x = sample(model, program, 3)
        y = outputs(model, x)
        outputs(model, sample(model, program, 1))
    except Exception as error:  # Keras cannot do this model
        raise UnfitError(f"{type(error).__name__}") from error
    if not all(np.isfinite(a).all() and np.abs(a).max(initial=0) < 1e6 for a in y):
        raise UnfitError("not finite")
    return model, x, y


def _varied(original: Any, variant: str) -> Any:
    try:
        return varied(original, variant)
    except Exception as error:
        if variant == "cloned by Keras":
            raise UnfitError("keras.models.clone_model") from error
        raise


def kinds(case: dict[str, Any]) -> list[str]:
    """Return the kinds of steps of a case."""
    return [step[1] for step in case["program"]["steps"]]


def main() -> None:
    """Serve until the input ends."""
    from tests.fuzz.serve import serve

    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    serve(drawn, run, kinds)


if __name__ == "__main__":
    main()
