"""Training that sees what quantization will do, inside the user's own `fit`."""

import threading
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from numbers import Real
from types import MappingProxyType
from typing import Any

import keras
import numpy as np

from kerasmem.backends import shadow
from kerasmem.callbacks.attachment import Attachment, retrace
from kerasmem.callbacks.running import is_fitting
from kerasmem.compression.quantize.aware.awareness import Awareness
from kerasmem.compression.quantize.aware.batch_norm import freeze
from kerasmem.compression.quantize.aware.quantizers import (
    FakeQuantizer,
    FirstValue,
    MovingAverage,
)
from kerasmem.compression.quantize.config import MIXED, Quantize
from kerasmem.compression.quantize.given_ranges import Ranges, check_ranges
from kerasmem.errors import ConfigError, ModelError

_NO_RANGES: Ranges = MappingProxyType({})


class QuantizationAware(keras.callbacks.Callback):
    """Lets a model train as if it were quantized; it stays a plain Keras model.

    In every forward pass, also in validation, the weights are read as `quantize` would
    store them, and gradients pass the rounding as if it were not there. What is trained
    and saved are the float weights. After `fit` nothing is left on the model;
    `km.compress(model, quantize)` then stores the very values that training has seen,
    and with `learned_scales` so does a choice that has them as its `scales`.

    Args:
        quantize: how the weights are to be stored, and which.
        activations: whether what layers give each other is rounded to int8 too, in
            ranges that follow what is seen; needs a model with a graph. None for
            `"int8-static"` alone: there, whatever is computed with floats is not. In
            `"int8-dynamic"` the inputs of products are rounded in any case.
        decay: weight of what was before in the moving average of ranges, in [0, 1);
            not used where their widths are learned.
        freeze_batch_norm: share of the epochs after which BatchNormalization trains
            with its moving statistics, as inference will; 0 for at once, 1 for never.
        ranges: ranges of activations to begin with, those of an earlier training;
            by default those that `quantize` has.
        learned_scales: whether the optimizer trains scales too, beginning with what
            they are without (LSQ): those of weights in symmetric int4 and int8, and
            of activations that are rounded the width of their ranges.

    Attributes:
        ranges: of activations as they are after the latest epoch, a pair of ends by the
            name of a tensor; zero is in each.
        scales: of weights, likewise, arrays by the name of a weight, for
            `Quantize(..., scales=)`; those that `quantize` has and those learned.

    Raises:
        ConfigError: if a value is out of its range, or `quantize` is `"mixed"`.
        ModelError: at the start of `fit`, if the model has no weights yet, none to
            round, no graph where its activations are to be rounded, or not the tensors
            and weights that `ranges` and scales are of; in it, if a layer assigns a
            weight that it reads.

    Example:
        >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(5)])
        >>> model.compile("sgd", "mse")
        >>> x, y = keras.ops.ones((8, 4)), keras.ops.ones((8, 5))
        >>> aware = QuantizationAware(Quantize("int8"), activations=True)
        >>> history = model.fit(x, y, verbose=0, callbacks=[aware])
        >>> list(aware.ranges.values())[0]
        (0.0, 1.0)
    """

    async_safe = True

    def __init__(
        self,
        quantize: Quantize,
        *,
        activations: bool | None = None,
        decay: float = 0.99,
        freeze_batch_norm: float = 0.5,
        ranges: Ranges = _NO_RANGES,
        learned_scales: bool = False,
    ) -> None:
        super().__init__()
        if not isinstance(quantize, Quantize):
            raise ConfigError(
                "QuantizationAware takes a Quantize, such as Quantize('int8'). "
                f"Received: quantize={quantize!r}."
            )
        if quantize.rounding != "nearest":
            raise ConfigError(
                "A training step sees weights rounded to nearest. Next: train with "
                "rounding='nearest', and compress with the same. Received: "
                f"rounding={quantize.rounding!r}."
            )
        if quantize.scheme == MIXED:
            raise ConfigError(
                "A training step sees weights in the scheme that they will have, and "
                f"{MIXED!r} chooses one for each layer of a model that is trained. "
                "Next: train with another one, and compress with the same. Received: "
                f"scheme={MIXED!r}."
            )
        for name, value, fits, expected in (
            ("decay", decay, lambda x: 0 <= x < 1, "at least 0 and below 1"),
            ("freeze_batch_norm", freeze_batch_norm, lambda x: 0 <= x <= 1, "0 to 1"),
        ):
            is_number = isinstance(value, Real) and not isinstance(value, bool)
            if not is_number or not fits(value):
                raise ConfigError(
                    f"The {name} of QuantizationAware is a number, {expected}. "
                    f"Received: {name}={value!r}."
                )
        if activations not in (None, True, False):
            raise ConfigError(
                "The activations of QuantizationAware are rounded, True, or not, "
                f"False; None for what the scheme says. Received: {activations=}."
            )
        check_ranges(ranges)
        rounds = quantize.is_static if activations is None else activations
        if ranges and not rounds:
            raise ConfigError(
                "Ranges are of activations, which are not rounded. Next: pass "
                f"activations=True, or no ranges. Received: {activations=}, ranges of "
                f"{len(ranges)} tensors."
            )
        _check_learned(quantize, learned_scales, rounds=rounds)
        self.quantize = quantize
        self.ranges = dict(ranges) or dict(quantize.ranges)
        self.scales = {name: np.array(s, "float32") for name, s in quantize.scales}
        self._learned = learned_scales
        self._quantizer = _quantizer(decay, learned_scales) if rounds else None
        self._freeze_after = freeze_batch_norm
        self._awareness: Awareness | None = None
        self._undo = ExitStack()
        self._is_frozen = False
        self._attachment: Attachment | None = None
        self._thread = 0

    def on_train_begin(self, logs: Any = None) -> None:
        """Round what the model reads from now on."""
        model = self.model
        self.detach()
        if not model.built:
            raise ModelError(
                f"The model {model.name!r} has no weights to round yet. Build it "
                "before fit: call it on a batch, or give it an Input."
            )
        self._is_frozen = False
        with ExitStack() as undo:
            # Those of validation were traced otherwise, and will be.
            undo.callback(_forget_functions, model)
            aware = Awareness(
                model,
                replace(self.quantize, scales=self.scales),
                self._quantizer,
                self.ranges,
                learned=self._learned,
            )
            undo.callback(aware.release)
            for name in ("call", "make_test_function", "make_predict_function"):
                outside = partial(self._outside_of_fit, name)
                undo.callback(shadow(model, name, outside))
            _forget_functions(model)
            self._attachment = Attachment(model, self._release)
            self._undo = undo.pop_all()
        self._awareness, self._thread = aware, threading.get_ident()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Freeze BatchNormalization if it is time."""
        is_due = epoch >= self._freeze_after * self.params["epochs"]
        if is_due and not self._is_frozen and self._awareness is not None:
            self._is_frozen = True
            self._undo.callback(freeze(self.model, self._awareness.is_passing))
            retrace(self.model)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Note the ranges and scales."""
        if self._awareness is not None:
            # Asking for the model brings its variables up to date on JAX.
            _ = self.model
            self.ranges = self._awareness.ranges()
            self.scales = self._awareness.scales()

    def on_train_end(self, logs: Any = None) -> None:
        """Let the model compute as ever again."""
        self.detach()

    def detach(self) -> None:
        """Let the model compute as ever now; a second call is a no-op."""
        if self._attachment is not None:
            # Brings the variables up to date on JAX, while the ranges and the scales
            # are among them.
            _ = self.model
            self._attachment.release()
            self._attachment = self._awareness = None

    def _release(self) -> None:
        self._undo.close()

    def _outside_of_fit(
        self, name: str, original: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Detach where `fit` was broken off: the model is used for something else."""
        if threading.get_ident() == self._thread and not is_fitting(self._model):
            self.detach()
            return getattr(self._model, name)(*args, **kwargs)
        return original(*args, **kwargs)


def _check_learned(quantize: Quantize, learned: Any, *, rounds: bool) -> None:
    if learned not in (True, False):
        raise ConfigError(
            "The scales of QuantizationAware are learned, True, or not, False. "
            f"Received: learned_scales={learned!r}."
        )
    if learned and not (quantize.has_scales or (quantize.is_static and rounds)):
        raise ConfigError(
            "Scales are learned of symmetric codes: 'int8', 'int8-dynamic' or 'int4', "
            "or of activations in 'int8-static'. Received: "
            f"scheme={quantize.scheme!r}, symmetric={quantize.symmetric!r}."
        )


def _quantizer(decay: float, learned: bool) -> FakeQuantizer:  # noqa: FBT001
    return FirstValue() if learned else MovingAverage(decay=decay)


def _forget_functions(model: Any) -> None:
    """Have validation and prediction traced anew."""
    model.test_function = model.predict_function = None
