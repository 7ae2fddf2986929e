"""Cases one after the other in a child that may crash or hang; what failed shrinks."""

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fuzz.outcome import Outcome
from tests.fuzz.shrink import shrunk

_ROOT = Path(__file__).parents[2]
_CASES_A_CHILD = 100  # JAX keeps what it compiles: about 25 MiB a graph
_ONE_THREAD = {
    "OMP_NUM_THREADS": "1",  # tiny graphs: threads would only wait for each other
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}
_START_SECONDS, _CASE_SECONDS = 240, 120


class Child:
    """A worker that is started when it is needed, and again after it has died.

    Args:
        module: of the worker.
    """

    def __init__(self, module: str) -> None:
        self._command = [sys.executable, "-m", module]
        self._process: Any = None
        self._served = 0
        # What a child that was killed leaves behind is here, and goes with `close`.
        self._room = tempfile.TemporaryDirectory(prefix="fuzz-")

    def run(self, case: dict[str, Any]) -> dict[str, Any]:
        """Return what became of a case; a crash and a hang are outcomes, too."""
        if self._process is None:
            self._start()
        line = self._asked(case, _CASE_SECONDS + (not self._served) * _START_SECONDS)
        self._served += 1
        if line is None:
            word, code = "hang", None
        elif not line:
            word, code = "crash", self._process.wait()
        else:
            if self._served >= _CASES_A_CHILD:
                self.stop()
            return json.loads(line)
        self.stop()
        outcome = Outcome(word, f"exit code {code}")
        return {**outcome.to_json(), "case": case, "kinds": [], "seconds": 0.0}

    def close(self) -> None:
        """End the worker, and remove what it wrote."""
        self.stop()
        self._room.cleanup()

    def stop(self) -> None:
        """End the worker; the next case starts another one."""
        if self._process is not None:
            self._process.kill()
            with self._process:  # closes its pipes and waits
                self._process = None

    def _start(self) -> None:
        self._process = subprocess.Popen(
            self._command,
            bufsize=0,  # nothing is left to write where the worker has died
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=_ROOT,
            env={
                **_ONE_THREAD,
                **os.environ,
                "PYTHONPATH": str(_ROOT),
                "TMPDIR": self._room.name,
            },
        )
        self._served = 0

    def _asked(self, case: dict[str, Any], seconds: float) -> bytes | None:
        """Return the answer's line, nothing if the child died, None if it hangs."""
        pipe = self._process.stdout
        try:
            self._process.stdin.write(json.dumps(case).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return b""
        end, line = time.monotonic() + seconds, b""
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([pipe], [], [], max(end - time.monotonic(), 0))
            if not ready:
                return None
            piece = os.read(pipe.fileno(), 1 << 16)
            if not piece:
                return b""
            line += piece
        return line


@dataclass
class Tally:
    """What became of all cases so far; it is written to a file and read back."""

    next_seed: int
    outcomes: Counter = field(default_factory=Counter)
    refusals: Counter = field(default_factory=Counter)
    kinds: Counter = field(default_factory=Counter)
    failures: dict[str, list] = field(default_factory=dict)
    seconds: float = 0.0
    rss_bytes: int = 0

    @classmethod
    def read(cls, path: Path | None, seed: int) -> "Tally":
        """Return what an earlier run has left, or the beginning."""
        if path is None or not path.exists():
            return cls(seed)
        found = cls(**json.loads(path.read_text()))
        for name in ("outcomes", "refusals", "kinds"):
            setattr(found, name, Counter(getattr(found, name)))
        return found

    def write(self, path: Path | None) -> None:
        """Keep it for a later run."""
        if path is not None:
            path.write_text(json.dumps(vars(self), indent=1))

    def add(self, answer: dict[str, Any]) -> Outcome:
        """Count one case."""
        outcome = Outcome(answer["word"], answer["reason"], answer["trace"])
        self.next_seed += 1
        self.outcomes[outcome.word] += 1
        self.kinds.update(set(answer["kinds"]))
        if outcome.word in ("refused", "unfit"):
            self.refusals[outcome.kind] += 1
        self.seconds += answer["seconds"]
        self.rss_bytes = max(self.rss_bytes, answer.get("rss_bytes", 0))
        return outcome

    def table(self) -> str:
        """Return it as text."""
        count = sum(self.outcomes.values())
        judged = count - self.outcomes["unfit"]
        lines = [f"{count} cases, {len(self.kinds)} kinds"]
        lines += [
            f"  {n:6} {100 * n / max(count, 1):5.1f} %  {word}"
            for word, n in self.outcomes.most_common()
        ]
        share = 100 * self.outcomes["refused"] / max(judged, 1)
        lines += [f"refused: {share:.1f} % of what is a case; by reason:"]
        lines += [f"  {n:6}  {why}" for why, n in self.refusals.most_common(40)]
        lines += ["failures:"] if self.failures else []
        lines += [
            f"  {len(s):6}  {k} (seeds {s[:4]})" for k, s in self.failures.items()
        ]
        lines += [
            f"{self.seconds:.0f} s, {self.seconds / max(count, 1):.2f} s a case, "
            f"highest resident memory {self.rss_bytes / 2**20:.0f} MiB"
        ]
        return "\n".join(lines)


def look(
    module: str, tally: Tally, *, until: float, cases: int, corpus: Path | None,
    state: Path | None = None,
) -> Tally:  # fmt: skip
    """Try one seed after the other.

    Args:
        module: of the worker.
        tally: where it begins, and what is counted.
        until: time (`time.monotonic`) to end at.
        cases: most to try.
        corpus: folder for what fails, shrunk; None to keep nothing.
        state: file to keep the tally in.
    """
    child = Child(module)
    try:
        while cases > 0 and time.monotonic() < until:
            cases -= 1
            seed = tally.next_seed
            answer = child.run({"seed": seed})
            outcome = tally.add(answer)
            if outcome.failed:
                seeds = tally.failures.setdefault(outcome.kind, [])
                seeds.append(seed)
                print(f"{seed}: {outcome.word}: {outcome.reason[:300]}", flush=True)
                if corpus is not None and len(seeds) == 1:
                    _keep(
                        child,
                        answer,
                        outcome,
                        corpus / f"{module.split('.')[2]}-{seed}.json",
                    )
            if cases % 20 == 0 or outcome.failed:
                tally.write(state)
    finally:
        child.close()
        tally.write(state)
    return tally


def _keep(child: Child, answer: dict, outcome: Outcome, path: Path) -> None:
    """Write the smallest case that fails in the same way."""

    def fails(case: dict[str, Any]) -> bool:
        found = child.run(case)
        return Outcome(found["word"], found["reason"]).kind == outcome.kind

    case = answer["case"]
    if outcome.word != "hang":
        case = shrunk(case, fails)
    found = {"outcome": outcome.to_json(), "case": case}
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n")
    print(f"  kept as {path.name}: {json.dumps(case)[:600]}", flush=True)
