"""Runs a script as `__main__` and adds monitors to every call of `fit`.

`kerasmem run` starts this file in a child process:

    python -P watched_script.py RUN_DIR timeline|"" SCRIPT.py [arguments]

The script may set environment variables first, so this module does not import Keras or
kerasmem. Once Keras is imported, `keras.Model.fit` is replaced in this process. The new
method appends the monitors to the callbacks, and prepends a callback that counts steps
until memory runs out.
"""

import functools
import importlib.abc
import importlib.util
import inspect
import runpy
import sys
from pathlib import Path
from types import ModuleType
from typing import Any


def main() -> None:
    """Run the script of the command line."""
    _, log_dir, timeline, script, *arguments = sys.argv
    sys.meta_path.insert(0, _KerasFinder(log_dir, with_timeline=bool(timeline)))
    # As in `python SCRIPT.py`.
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))
    runpy.run_path(script, run_name="__main__")


class _KerasFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Import hook that patches the models of Keras after the import."""

    def __init__(self, log_dir: str, *, with_timeline: bool) -> None:
        self._log_dir = log_dir
        self._with_timeline = with_timeline
        self._loader: Any = None

    def find_spec(self, fullname: str, *_: Any) -> Any:
        """Return the spec of Keras with this loader, or None for other modules."""
        if fullname != "keras":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return None
        self._loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: Any) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        module.__loader__ = module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        _watch(module, self._log_dir, with_timeline=self._with_timeline)


def _watch(keras: Any, log_dir: str, *, with_timeline: bool) -> None:
    original = keras.Model.fit
    signature = inspect.signature(original)

    @functools.wraps(original)
    def fit(*args: Any, **kwargs: Any) -> Any:
        from kerasmem.memory.oom import noting_refusals

        call = signature.bind(*args, **kwargs)
        failures, *monitors = _monitors(log_dir, with_timeline=with_timeline)
        callbacks: Any = call.arguments.get("callbacks")
        if isinstance(callbacks, keras.callbacks.CallbackList):
            callbacks.callbacks[:] = [failures, *callbacks.callbacks, *monitors]
        else:
            own = keras.tree.flatten(callbacks or [])
            call.arguments["callbacks"] = [failures, *own, *monitors]
        with noting_refusals() as refusals:
            try:
                return original(*call.args, **call.kwargs)
            except BaseException as error:
                timelines = _finished(monitors)
                model = call.arguments["self"]
                failures.examine(model, error, call.arguments, refusals, timelines)
                raise

    # No issue known: Keras 3.15 has no callbacks for all models of a process.
    keras.Model.fit = fit


def _finished(monitors: list[Any]) -> list[Any]:
    from kerasmem.callbacks import MemoryTimeline

    for monitor in monitors:
        if isinstance(monitor, MemoryTimeline):
            monitor.finish()
            return monitor.timelines
    return []


def _monitors(log_dir: str, *, with_timeline: bool) -> list[Any]:
    from kerasmem.callbacks import GradientMonitor, MemoryMonitor, MemoryTimeline
    from kerasmem.callbacks.post_mortems import FailureWatch

    monitors: list[Any] = [FailureWatch(log_dir)]
    monitors += [MemoryMonitor(log_dir=log_dir), GradientMonitor(log_dir=log_dir)]
    if with_timeline:
        monitors.append(MemoryTimeline(log_dir=log_dir))
    return monitors


if __name__ == "__main__":
    main()
