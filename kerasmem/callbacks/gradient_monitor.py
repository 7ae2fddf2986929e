"""What the gradients look like, epoch by epoch, without a second backward pass."""

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import Any

from kerasmem import backends
from kerasmem.backends.gradients import innermost, scales_loss
from kerasmem.callbacks.attachment import AttachedCallback
from kerasmem.callbacks.gradient_findings import GradientFindings
from kerasmem.callbacks.gradient_signs import LearningRate, learning_rate
from kerasmem.callbacks.gradient_tally import GradientReading, GradientTally
from kerasmem.callbacks.run_log import Guard, RunLog, epoch_figures, warn
from kerasmem.callbacks.validation_gap import ValidationGap
from kerasmem.checks import Whole
from kerasmem.graph.values import to_numpy
from kerasmem.records import Finding, GradientRecord, Run
from kerasmem.report.plots import Plot, panels_plot
from kerasmem.report.run import notebook_html
from kerasmem.report.run.gradients import norm_panel
from kerasmem.report.run.page import loss_panel
from kerasmem.types import Model, Optimizer

_COUNTING = Lock()


class GradientMonitor(AttachedCallback):
    """A callback that writes the norm of the gradient into `logs` every epoch.

    List it before the callbacks that shall see its keys: `EarlyStopping` (with
    `mode="min"` or `"max"`, which Keras cannot guess), `CSVLogger`, `TensorBoard`.
    `History` and the progress bar see them anyway.

    | key in `logs` | what it is |
    |---|---|
    | `gradient_norm` | mean over the epoch's updates of the global L2 norm |
    | `gradient_norm_max` | the largest of these norms |
    | `gradient_nonfinite` | number of steps whose gradient held NaN or infinity |

    The gradient is the one that reaches the update: unscaled, not yet clipped,
    accumulated, summed over replicas. It is read inside the compiled step. A step
    that is not finite counts in `gradient_nonfinite` alone; if all are, the norms are
    NaN. A float32 norm above 1.8e19 counts as infinite. `CSVLogger` writes an empty
    `val_` twin for every key, Keras's own too, if there is no validation.

    Cost: one pass over the gradients per update, and about three more in every
    `every`-th. On two CPU cores with Adam a step took 1.00 to 1.04 times as long by
    default and 0.99 to 1.13 with `every=1`, of a small CNN and of dense layers. The
    peak of memory rises by no more than twice the largest gradient and 2 %, beside the
    `own_bytes` of a record. Under a `tf.distribute` strategy there is one more
    reduction over the replicas.

    Limits: only `model.optimizer` is watched, in `fit`. Of a `MultiOptimizer` whose
    parts accumulate gradients the gradient of each batch is seen. With an optimizer
    that does not update through the methods of Keras's optimizers, the monitor warns
    once and the keys are absent.

    Reading changes no training: bit for bit without jit (on TensorFlow with
    `tf.config.experimental.enable_op_determinism()`, without which it may fuse other
    operations than before), to rounding with jit. One exception: on TensorFlow, SGD
    may differ in the last bit, because TensorFlow's graph optimizer reorders products
    if nothing else reads the gradient. Deep networks amplify such a difference.

    After `fit` nothing is left on the model or its optimizer. After an exception or
    Ctrl-C in `fit` what is left does nothing but count, and goes at the model's next
    `fit`, when it is saved, or with `detach()`. A checkpoint written in the meantime
    is as if there were no monitor.

    Args:
        every: number of updates, from 1, from one with per-variable statistics to the
            next; the first update of an epoch always has them.
        per_variable: whether to take per-variable statistics at all.
        log_dir: folder in which `gradients.jsonl` gets a line per epoch as it comes
            and `findings.jsonl` one per finding; existing files are appended to.

    Attributes:
        records: a `GradientRecord` per epoch, over all fits.
        findings: a `Finding` per thing that is wrong: a training that diverges,
            gradients that are not finite, vanish or explode, layers that get none,
            updates as large as the weights, validation far from training.

    Raises:
        ConfigError: if `every` is not a whole number from 1.

    Example:
        >>> monitor = GradientMonitor(every=100)
        >>> monitor.records
        []
    """

    def __init__(
        self,
        *,
        every: int = 10,
        per_variable: bool = True,
        log_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__()
        every = Whole(1).check("GradientMonitor", "every", every)
        self.records: list[GradientRecord] = []
        self.findings: list[Finding] = []
        self._every = every if per_variable else 0
        self._guard = Guard("GradientMonitor")
        self._log = RunLog(log_dir, self._guard)
        self._rules = GradientFindings("GradientMonitor")
        self._validation = ValidationGap("GradientMonitor")
        self._tally: GradientTally | None = None
        self._batches = self._before = 0

    def _repr_html_(self) -> str:
        return notebook_html(self._run())

    def plot(self) -> Plot:
        """Return a picture of loss and gradient norm by epoch: `.save(path)` writes it.

        Returns:
            A picture that a notebook shows; `.figure` is matplotlib's.

        Raises:
            ConfigError: if nothing was recorded yet.
        """
        panels = (loss_panel(self._run()), norm_panel(self.records))
        return panels_plot([panel for panel in panels if panel is not None])

    def _run(self) -> Run:
        return Run(gradients=tuple(self.records), findings=tuple(self.findings))

    def detach(self) -> None:
        """Take everything off the model; a second call is a no-op."""
        self._tally = None
        with self._guard("come off the model"):
            super().detach()

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Hook into the optimizer."""
        super().on_train_begin(logs)
        with self._guard("hook into the optimizer"):
            self._rules.start_fit(self.model.name)
            self._validation.start_fit()
            self._log.find_process(self.model)
            if self.model.built and not self.model.trainable_variables:
                self._guard.warn(
                    "GradientMonitor has nothing to watch: the model has no trainable "
                    "weights."
                )
            else:
                self._attach(self.model)
        self._log.begin(self.model)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Forget the epoch before."""
        with self._guard("start a new epoch"):
            if self._tally:
                self._tally.clear()
            self._validation.start_epoch(self.model)
            self._batches, self._before = 0, _updates(self.model.optimizer)

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        """Count the batches of the epoch."""
        # Keras may call it in several threads, and not in order.
        with _COUNTING:
            self._batches = max(self._batches, batch + 1)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Keep a record, write it into `logs`, and tell what is wrong."""
        findings: list[Finding] = []
        with self._guard("read the gradients"):
            reading = self._tally.read(epoch, self._skipped()) if self._tally else None
            if reading is None:
                self._guard.warn(
                    "GradientMonitor saw no update of model.optimizer in this epoch, "
                    "so its keys are absent from the logs."
                )
                return
            last = self._learning_rate([1])
            record = replace(
                reading.record,
                **epoch_figures(logs),
                learning_rate=last.value if last else None,
            )
            if logs is not None:
                logs.update(_series(record))
            self.records.append(record)
            self._log.append("gradients", record)
            findings = self._look(replace(reading, record=record))
            with self._guard("compare validation and training"):
                batches = self.params.get("steps") or record.steps
                findings += self._validation.after_epoch(
                    epoch, logs or {}, self.model, batches
                )
            self._log.add_findings(findings, self.findings)
        for finding in findings:
            if finding.severity == "error":
                warn(finding.text)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Leave no trace."""
        super().on_train_end(logs)
        self._log.complete(self.model)

    def _skipped(self) -> int:
        optimizer = self.model.optimizer
        if not scales_loss(optimizer):
            return 0
        return max(0, self._batches - (_updates(optimizer) - self._before))

    def _look(self, reading: GradientReading) -> list[Finding]:
        # Of the update at which it went wrong, else of the first and the last.
        steps, first = reading.record.steps, reading.first_nonfinite
        ago = [1, max(1, steps)] if first is None else [steps - first]
        return self._rules.after_epoch(
            reading.record,
            reading.nonfinite_paths,
            reading.first_nonfinite,
            reading.skipped_steps,
            self._learning_rate(ago),
        )

    def _learning_rate(self, updates_ago: Sequence[int]) -> LearningRate | None:
        with self._guard("read the learning rate"):
            return learning_rate(self.model.optimizer, updates_ago)
        return None

    def _undo(self, hooks: ExitStack) -> None:
        # Also where the next `fit`, or a `save`, takes the monitor off.
        with self._guard("come off the model"):
            hooks.close()

    def _attach(self, model: Model) -> None:
        backend = backends.current()
        backend.check_optimizer(model.optimizer)
        tally = GradientTally(model, self._every)

        def observe(
            gradients: Sequence[Any], variables: Sequence[Any]
        ) -> Callable[[], None] | None:
            with self._guard("read a gradient"):
                finish = tally.observe(gradients, variables)
                return None if finish is None else lambda: guarded(finish)
            return None

        def guarded(finish: Callable[[], None]) -> None:
            with self._guard("see how far an update went"):
                finish()

        with ExitStack() as hooks:
            hooks.callback(tally.release)
            hooks.callback(backend.observe_gradients(model.optimizer, observe))
            self.attach(model, partial(self._undo, hooks.pop_all()))
        self._tally = tally


def _updates(optimizer: Optimizer) -> int:
    # Private: the public count leaves out batches whose gradients are accumulated.
    return int(to_numpy(innermost(optimizer)._iterations))


def _series(record: GradientRecord) -> dict[str, float]:
    return {
        "gradient_norm": record.norm,
        "gradient_norm_max": record.norm_max,
        "gradient_nonfinite": float(record.nonfinite_steps),
    }
