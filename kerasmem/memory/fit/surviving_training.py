"""What stands in for a model's training function, and survives out-of-memory."""

from dataclasses import replace
from typing import Any

import keras

from kerasmem.backends.training import Step, Training, build_for
from kerasmem.errors import ConfigError, OutOfMemoryError
from kerasmem.memory.estimate.inputs import lengths_in
from kerasmem.memory.fit.foresight import micro_batches
from kerasmem.memory.fit.micro import MicroBatches
from kerasmem.memory.fit.safe_shapes import SafeShapes
from kerasmem.memory.fit.surviving_step import Circumstances, SurvivingStep
from kerasmem.memory.fit.whole_batches import stateful_layers
from kerasmem.memory.oom import Moment
from kerasmem.records import PostMortem
from kerasmem.units import format_bytes


class SurvivingTraining(SurvivingStep):
    """Calls a model's training function, see `SurvivingStep` and `MicroBatches`.

    Args:
        model: the compiled model.
        training: how the model is trained.
        circumstances: what its steps share with others of this `fit`.
    """

    def __init__(
        self, model: Any, training: Training, circumstances: Circumstances
    ) -> None:
        super().__init__(model, training, circumstances)
        self._training = training
        self._factors = circumstances.factors
        self._micro: MicroBatches | None = None
        self._made: Any = None
        self._input_shape: Any | None = None

    def begin_epoch(self, epoch: int) -> None:
        """Renew the copy to go back to, and see whether to try larger parts again."""
        self._epoch = epoch
        self._rollback.expire()
        self._notice_changes()
        if self._plan.begin_epoch(self._largest):
            self._safe = SafeShapes()

    @property
    def versions(self) -> tuple[Step, ...]:
        """The functions that it calls."""
        return self.whole, *(self._micro.functions if self._micro else ())

    @property
    def latest(self) -> Step:
        """The function of Keras that runs whole batches, else this one."""
        if self._micro is not None and self._micro.is_open:
            return self.__call__
        return getattr(self.whole, "latest", self.whole)

    def end(self) -> None:
        """Give back what the training took."""
        self._rollback.drop()
        if self._micro is not None:
            self._micro.release()
        self._factors.remove()

    def error_of(self, error: Exception) -> OutOfMemoryError | None:
        """Return what to raise for an error outside of steps, None for another one."""
        cause = self._cause(error, "unknown")
        if cause is not None and cause.kind == "host" and self._epoch is None:
            # Before the first epoch it is Keras that looks at the first batches; the
            # frames that would say so it takes out of the traceback.
            cause = self._cause(error, "input")
        return (
            None if cause is None else self._error(cause, None, self._largest or 1, 1)
        )

    def _meet(self, state: Any, batch: Any, size: int) -> None:
        build_for(self._model, batch)
        policy = self._policy
        limit = policy.limit_bytes
        if limit is None or not policy.splits:
            return
        verify = not self._training.survives_failure
        with self._training.values(state):
            parts = self._teller.ask(
                lambda: self._parts_of(batch, size, limit, verify=verify)
            )
        if parts is None and policy.is_given and not self._teller.was_at_a_loss:
            raise ConfigError(
                "By the estimate not even one sample at a time fits into the limit. "
                "Expected: a larger one, or None for what the device has. Received: "
                f"memory_limit={format_bytes(limit)}."
            )
        if parts is not None and parts > 1:
            self._foresee(size, parts)

    def _parts_of(
        self, batch: Any, size: int, limit: int, *, verify: bool
    ) -> int | None:
        x, _, _ = keras.utils.unpack_x_y_sample_weight(batch)
        lengths = self._input_shape = lengths_in(self._model, x) or None
        return micro_batches(
            self._model, size, limit, verify=verify, input_shape=lengths
        )

    def _foresee(self, size: int, parts: int) -> None:
        names = stateful_layers(self._model)
        if names:
            self._teller.tried_whole(size, names[0])
            return
        self._plan.foresee(-(-size // parts))
        self._teller.foreseen(self._model, size, parts)

    def _made_parts(self) -> MicroBatches:
        self._micro = MicroBatches(self._model, self._training, self._factors)
        return self._micro

    def _moment(self, moment: Moment) -> Moment:
        return replace(moment, step=self._step, input_shape=self._input_shape)

    def _tell(self, found: PostMortem, parts: int, lost: int) -> None:
        self._teller.failed(self._model, found, parts, lost)

    def _notice_changes(self) -> None:
        """Begin anew if a callback has made another step, or unfrozen layers."""
        model = self._model
        trained = tuple(map(id, model.trainable_variables))
        made = id(self.whole), id(model.optimizer), trained
        if self._made not in (None, made):
            self._forget_parts()
            self._micro = None
        self._made = made
