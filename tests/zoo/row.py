"""One kind of model, all verbs."""

import contextlib
import io
import tempfile
import time
import traceback
import warnings
from pathlib import Path

from kerasmem.errors import KerasMemError
from tests.zoo.kinds import build
from tests.zoo.verbs import VERBS, CommandError, WrongResultError

WORKS = "works"
DEFECT = "DEFECT"
OF_KERAS = "Keras cannot run this model on this backend: "


def run_cell(kind: str, verb: str) -> tuple[str, float | None]:
    """Returns "works", the refusal, or a text that begins with "DEFECT".

    An error of another kind is no defect if Keras's `fit` and `predict` raise, too.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        try:
            return WORKS, VERBS[verb](build(kind), Path(folder))
        except KerasMemError as error:
            return " ".join(str(error).split()), None
        except CommandError as error:
            text = str(error)
            return (text if error.code in (2, 3) else f"{DEFECT} {text}"), None
        except WrongResultError as error:
            return f"{DEFECT} wrong result: {error}", None
        except Exception as error:  # noqa: BLE001 - every other error is a defect
            if reason := _error_of_keras(kind):
                return f"{OF_KERAS}{reason}", None
            last = traceback.extract_tb(error.__traceback__)[-1]
            text = " ".join(str(error).split())[:300]
            place = f"{Path(last.filename).name}:{last.lineno}"
            return f"{DEFECT} {type(error).__name__}: {text} ({place})", None


def _error_of_keras(kind: str) -> str | None:
    """Returns the error if Keras can neither train nor run this kind, else `None`."""
    case, reason = build(kind), None
    for call, arguments in (
        (case.model.fit, (case.x, case.y)),
        (case.model.predict, (case.x,)),
    ):
        try:
            call(*arguments, batch_size=8, verbose=0)
        except Exception as error:  # noqa: BLE001 - whatever Keras raises
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        else:
            return None
    return reason


def run_row(kind: str, verbs: list[str], results: Path) -> None:
    """Runs the verbs one after the other and appends each cell to the results."""
    from tests.zoo.__main__ import write

    for verb in verbs:
        begin = time.monotonic()
        result, error = run_cell(kind, verb)
        seconds = round(time.monotonic() - begin, 1)
        write(results, kind, verb, result, error=error, seconds=seconds)
