"""Post-mortem of a `fit` that ran out of memory."""

import os
from collections.abc import Sequence
from typing import Any

import keras

from kerasmem import backends
from kerasmem.backends.exhaustion import RefusalLog
from kerasmem.callbacks.run_log import Guard, begin_run
from kerasmem.errors import OutOfMemoryError
from kerasmem.files.run_dir import add_post_mortem
from kerasmem.graph.values import held_bytes
from kerasmem.memory.oom import StepContext, classify, post_mortem
from kerasmem.memory.oom.cause import figures_of
from kerasmem.memory.oom.fitting import samples_per_batch
from kerasmem.records import PostMortem, Timeline
from kerasmem.types import Model


class FailureWatch(keras.callbacks.Callback):
    """Tracks the step of a `fit` and writes a post-mortem if memory runs out.

    Keras calls no hook for an exception, so the caller of `fit` must catch it and call
    `examine`.
    """

    async_safe = True  # it has no hook at the end of a batch

    def __init__(self, log_dir: str | os.PathLike[str]) -> None:
        super().__init__()
        self._log_dir = log_dir
        self._guard = Guard("kerasmem")
        self._epoch: int | None = None
        self._step: int | None = None
        self._other_bytes: int | None = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Store the bytes in use other than the variables, such as the data."""
        with self._guard("read the memory"):
            in_use = figures_of().current_bytes
            if in_use is not None:
                self._other_bytes = max(in_use - held_bytes(self.model), 0)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Store the epoch."""
        self._epoch = epoch

    def on_train_batch_begin(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        """Count the steps."""
        self._step = 0 if self._step is None else self._step + 1

    def examine(
        self,
        model: Model,
        error: BaseException,
        arguments: dict[str, Any],
        refusals: RefusalLog,
        timelines: Sequence[Timeline] = (),
    ) -> PostMortem | None:
        """Return and write the post-mortem, or None for any other error.

        `error` must still refer to the tensors of the failed step.
        """
        with self._guard("write a post-mortem"):
            if isinstance(error, OutOfMemoryError):
                # `kerasmem.fit` may write to another folder, or to none.
                begin_run(self._log_dir, model)
                add_post_mortem(self._log_dir, error.post_mortem)
                return error.post_mortem
            cause = classify(error, model, refusals=refusals)
            if cause is None:
                return None
            record = post_mortem(
                model, cause, self._step_context(model, arguments, timelines)
            )
            begin_run(self._log_dir, model)
            add_post_mortem(self._log_dir, record)
            return record
        return None

    def _step_context(
        self, model: Model, arguments: dict[str, Any], timelines: Sequence[Timeline]
    ) -> StepContext:
        return StepContext(
            batch_size=_batch_size(arguments),
            epoch=self._epoch,
            step=self._step,
            is_freed=False,
            other_bytes=self._other_bytes,
            timelines=[one for one in timelines if self._is_seen_by(one)],
            process=backends.current().processes(model)[0],
        )

    def _is_seen_by(self, timeline: Timeline) -> bool:
        end = timeline.first_step + timeline.steps
        return self._step is not None and timeline.first_step <= self._step <= end


def _batch_size(arguments: dict[str, Any]) -> int:
    try:
        return samples_per_batch(arguments.get("x"), arguments.get("batch_size"))
    except Exception:  # noqa: BLE001 - reading the data may run out of memory
        return 0
