"""Variables that a model's `fit` trains beside those of the model."""

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import keras
import numpy as np

from kerasmem.backends import current, shadow
from kerasmem.backends.gradients import innermost
from kerasmem.backends.riders import ride
from kerasmem.compression.quantize.aware.passed_state import Rider
from kerasmem.errors import ConfigError
from kerasmem.graph.values import to_numpy


class TrainedBeside:
    """Variables that are updated in the same steps as those of a model.

    That does an optimizer of their own, a copy of the model's: its learning rate is
    always that of the model's, it accumulates gradients and is scaled and skipped like
    it, but there is neither weight decay nor an average of the values. The model's
    optimizer keeps the variables that it has.

    On JAX a step is differentiated by the model's trainable variables, so these are
    among them, and the state of the copy is among that of the model's optimizer, until
    `release`; no file sees either. On TensorFlow a tape is asked for the gradients of
    the model's weights alone, so whatever makes another one hands it in. Torch leaves
    each gradient at its variable.

    Args:
        model: a built and compiled model.

    Raises:
        ConfigError: if its optimizer is made of several.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._outer, self._inner = model.optimizer, innermost(model.optimizer)
        if isinstance(self._inner, keras.optimizers.MultiOptimizer):
            raise ConfigError(
                "Learned scales are trained by a copy of the model's optimizer, which "
                f"is to be one. Received: {self._inner.name!r}, made of several. Next: "
                "compile with one optimizer, or learned_scales=False."
            )
        self._variables: list[Any] = []
        self._caught = _Caught()
        self._undo = ExitStack()

    def add(self, value: np.ndarray, name: str) -> Any:
        """Return a new variable; call it before `start`.

        Args:
            value: its first value, float32.
            name: its name.
        """
        with current().replicating(self._model):
            variable = keras.Variable(value, autocast=False, name=name)
        self._variables.append(variable)
        return variable

    def catching(self, variable: Any) -> Callable[[Any], None] | None:
        """Return what is to be given the gradient of a variable, None for nothing."""
        if keras.backend.backend() != "tensorflow":
            return None

        def catch(gradient: Any) -> None:
            # Looked for when it is there: each thread has gradients of its own.
            gradient = keras.ops.reshape(gradient, variable.shape)
            self._caught.gradients[id(variable)].append(gradient)

        return catch

    def start(self) -> None:
        """Have the variables trained from now on."""
        if not self._variables:
            return
        if not self._outer.built:
            self._outer.build(self._model.trainable_variables)
        with ExitStack() as undo:
            self._copy = self._copied()
            undo.callback(shadow(self._inner, "apply", self._apart))
            if keras.backend.backend() == "jax":
                self._ride(undo)
            else:
                undo.callback(shadow(self._outer, "apply", self._with_own))
                undo.callback(ride(self._outer, self._keep))
            self._undo = undo.pop_all()

    def release(self) -> None:
        """Take them away from the model; a second call is a no-op."""
        self._undo.close()

    def _copied(self) -> Any:
        """Return an optimizer like the model's for the variables."""
        inner = self._inner
        config = inner.get_config() | {"learning_rate": lambda: inner.learning_rate}
        with current().replicating(self._model):
            copy = type(inner).from_config(config)
            # Both ways: on torch it fails without variables, and Muon has its own.
            copy.use_ema, copy.weight_decay = False, None
            copy.exclude_from_weight_decay(var_list=self._variables)
            copy.build(self._variables)
        return copy

    def _apart(
        self, original: Any, gradients: Any, trainable_variables: Any = None
    ) -> Any:
        """Update the variables by their own optimizer, the others as ever."""
        variables = list(trainable_variables or self._inner._trainable_variables)
        pairs = list(zip(gradients, variables, strict=True))
        own = [(g, v) for g, v in pairs if self._is_own(v) and g is not None]
        if own:
            self._copy.apply(*map(list, zip(*own, strict=True)))
        others = [pair for pair in pairs if not self._is_own(pair[1])]
        with self._left_out():
            return original(*map(list, zip(*others, strict=True)))

    def _with_own(
        self, original: Any, gradients: Any, trainable_variables: Any = None
    ) -> Any:
        """Add the gradients of the variables to those that a step has found."""
        variables = list(trainable_variables or self._outer._trainable_variables)
        found = [(v, self._gradient(v, gradients)) for v in self._variables]
        own = [(v, gradient) for v, gradient in found if gradient is not None]
        return original(
            [*gradients, *(gradient for _, gradient in own)],
            [*variables, *(variable for variable, _ in own)],
        )

    def _gradient(self, variable: Any, others: Any) -> Any:
        """Return the gradient of a variable in this step, None if there is none.

        Args:
            variable: it.
            others: gradients of the same step.
        """
        if keras.backend.backend() == "torch":
            gradient, variable.value.grad = variable.value.grad, None
            return gradient
        # What another graph made of another step is of no use here.
        graphs = {_graph(gradient) for gradient in others if gradient is not None}
        caught = self._caught.gradients.pop(id(variable), ())
        own = [gradient for gradient in caught if _graph(gradient) in graphs]
        return sum(own) if own else None

    def _is_own(self, variable: Any) -> bool:
        return any(variable is own for own in self._variables)

    def _keep(self) -> Callable[[], None]:
        """Return what puts everything back to what it is now."""
        kept = [(v, to_numpy(v).copy()) for v in self._changing()]

        def put_back() -> None:
            for variable, value in kept:
                variable.assign(value)

        return put_back

    def _changing(self) -> list[Any]:
        return [*self._variables, *self._copy.variables]

    def _ride(self, undo: ExitStack) -> None:
        """Put the variables where JAX passes them to a step, and takes them back."""
        # Private, all of it: there is no public place for what is no weight.
        seeds, slots = self._model._seed_generators, self._inner._variables
        riders = [Rider(variable) for variable in self._variables]
        undo.callback(_take_out, seeds, riders)
        seeds.extend(riders)
        undo.callback(_take_out, slots, self._copy.variables)
        slots[len(slots) :] = self._copy.variables
        self._trained = [
            (each, list(each._trainable_variables))
            for each in {id(o): o for o in (self._outer, self._inner)}.values()
        ]
        for optimizer, before in self._trained:
            undo.callback(_set, optimizer, before)
            _set(optimizer, self._model.trainable_variables)
            for method in ("save_own_variables", "load_own_variables"):
                undo.callback(shadow(optimizer, method, self._hidden))

    @contextmanager
    def _left_out(self) -> Iterator[None]:
        """Return a scope in which the model's optimizer trains what it always did."""
        if keras.backend.backend() != "jax":
            yield  # they are not among them
            return
        now = list(self._inner._trainable_variables)
        theirs = [variable for variable in now if not self._is_own(variable)]
        _set(self._inner, theirs)
        try:
            yield
        finally:
            _set(self._inner, now)

    def _hidden(self, original: Any, store: Any) -> Any:
        """Save or load the model's optimizer without what rides in it."""
        slots, own = self._inner._variables, {id(v) for v in self._copy.variables}
        places = [(i, v) for i, v in enumerate(slots) if id(v) in own]
        _take_out(slots, self._copy.variables)
        try:
            return original(store)
        finally:
            # Not where an attachment has released everything in `original`.
            if any(self._is_own(v) for v in self._inner._trainable_variables):
                for place, variable in places:
                    slots[place:place] = [variable]


class _Caught(threading.local):
    """Gradients of a step by the id of their variable; each replica has a thread."""

    def __init__(self) -> None:
        self.gradients: dict[int, list[Any]] = defaultdict(list)


def _graph(gradient: Any) -> int:
    """Return what tells in which graph a gradient was made; 0 without one."""
    graph = getattr(gradient, "graph", None)
    return 0 if graph is None else id(graph)


def _take_out(held: list[Any], those: list[Any]) -> None:
    gone = {id(each) for each in those}
    held[:] = [each for each in held if id(each) not in gone]


def _set(optimizer: Any, variables: list[Any]) -> None:
    # In place: Keras would track a list that is set.
    optimizer._trainable_variables[:] = variables
