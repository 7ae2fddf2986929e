"""The end of the line in a worker: one case in, one outcome out, as JSON."""

import gc
import json
import os
import resource
import sys
import time
from collections.abc import Callable

from tests.fuzz.outcome import Outcome


def serve(
    drawn: Callable[[int], dict],
    run: Callable[[dict], Outcome],
    kinds: Callable[[dict], list[str]],
    last: dict[str, int] | None = None,
) -> None:
    """Answer every line of stdin until it ends.

    Args:
        drawn: makes a case of a seed.
        run: tries a case.
        kinds: says what a case is made of.
        last: has the resident memory of the last case, if that is of another process.
    """
    # What frameworks print must not come between.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    gc.freeze()  # what is imported is not looked through by every collection
    for line in sys.stdin:
        start = time.perf_counter()
        case = json.loads(line)
        if "seed" in case:
            case = drawn(case["seed"])
        outcome = run(case)
        answer = outcome.to_json() | {
            "case": case,
            "kinds": kinds(case),
            "seconds": time.perf_counter() - start,
            "rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            **(last or {}),
        }
        print(json.dumps(answer), file=answers, flush=True)
