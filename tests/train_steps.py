"""Models with a `train_step` in each form of Keras's guide "Customizing fit"."""

import keras
from keras import layers, ops

BACKEND = keras.backend.backend()


def update(optimizer, variables, compute_loss):
    """Update the variables as TensorFlow's and torch's guides do; return the loss."""
    if BACKEND == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            loss = compute_loss()
        gradients = tape.gradient(loss, variables)
        optimizer.apply(gradients, variables)
        return loss
    import torch

    for variable in variables:
        variable.value.grad = None
    loss = compute_loss()
    loss.backward()
    gradients = [variable.value.grad for variable in variables]
    with torch.no_grad():
        optimizer.apply(gradients, variables)
    return loss


class TwoParts(keras.Model):
    """Takes exactly two parts of data; has Keras's loss and metrics."""

    def train_step(self, *arguments):
        if BACKEND == "jax":
            return stateless_step(self, *arguments, parts=2)
        x, y = arguments[0]

        def compute():
            self.y_pred = self(x, training=True)
            return self.compute_loss(y=y, y_pred=self.y_pred)

        loss = update(self.optimizer, self.trainable_variables, compute)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, self.y_pred)
        return {metric.name: metric.result() for metric in self.metrics}


class ThreeParts(keras.Model):
    """Takes exactly three parts of data."""

    def train_step(self, *arguments):
        if BACKEND == "jax":
            return stateless_step(self, *arguments, parts=3)
        x, y, sample_weight = arguments[0]

        def compute():
            y_pred = self(x, training=True)
            return self.compute_loss(y=y, y_pred=y_pred, sample_weight=sample_weight)

        loss = update(self.optimizer, self.trainable_variables, compute)
        return {"loss": loss}


def stateless_step(model, state, data, parts):
    """Return logs and state of a step as in JAX's guide."""
    import jax

    trainable, fixed, slots, _ = state
    if len(data) != parts:
        raise ValueError(f"expected {parts} parts of data")
    x, y, *weights = data
    sample_weight = weights[0] if weights else None

    def compute(trainable, fixed):
        y_pred, fixed = model.stateless_call(trainable, fixed, x, training=True)
        loss = model.compute_loss(x, y, y_pred, sample_weight)
        return loss, fixed

    function = jax.value_and_grad(compute, has_aux=True)
    (loss, fixed), gradients = function(trainable, fixed)
    trainable, slots = model.optimizer.stateless_apply(slots, gradients, trainable)
    return {"loss": loss}, (trainable, fixed, slots, state[3])


class OwnLoss(keras.Model):
    """Compiled without a loss; compares integer labels with its own."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.loss_tracker = keras.metrics.Mean(name="loss")
        self.loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @property
    def metrics(self):
        return [self.loss_tracker]

    def train_step(self, *arguments):
        if BACKEND == "jax":
            return self.stateless_step(*arguments)
        x, y = arguments[0]
        loss = update(
            self.optimizer,
            self.trainable_variables,
            lambda: self.loss_fn(y, self(x, training=True)),
        )
        self.loss_tracker.update_state(loss)
        return {"loss": self.loss_tracker.result()}

    def stateless_step(self, state, data):
        import jax

        trainable, fixed, slots, metrics = state
        x, y = data

        def compute(trainable, fixed):
            y_pred, fixed = self.stateless_call(trainable, fixed, x, training=True)
            return self.loss_fn(y, y_pred), fixed

        function = jax.value_and_grad(compute, has_aux=True)
        (loss, fixed), gradients = function(trainable, fixed)
        trainable, slots = self.optimizer.stateless_apply(slots, gradients, trainable)
        metrics = self.loss_tracker.stateless_update_state(metrics, loss)
        logs = {"loss": self.loss_tracker.stateless_result(metrics)}
        return logs, (trainable, fixed, slots, metrics)


class GAN(keras.Model):
    """Two networks with two optimizers; takes images alone."""

    def __init__(self, discriminator, generator, **options):
        super().__init__(**options)
        self.discriminator, self.generator = discriminator, generator
        self.d_loss_tracker = keras.metrics.Mean(name="d_loss")
        self.built = keras.backend.backend() == "torch"  # which fits no other

    def compile(self, d_optimizer, g_optimizer, loss_fn):
        super().compile()
        self.d_optimizer = d_optimizer
        self.g_optimizer = g_optimizer
        self.loss_fn = loss_fn

    @property
    def metrics(self):
        return [self.d_loss_tracker]

    def train_step(self, real_images):
        if isinstance(real_images, tuple):
            real_images = real_images[0]
        count = ops.shape(real_images)[0]
        noise = keras.random.normal((count, 4))
        images = ops.concatenate([self.generator(noise), real_images], axis=0)
        labels = ops.concatenate([ops.ones((count, 1)), ops.zeros((count, 1))], axis=0)
        d_loss = update(
            self.d_optimizer,
            self.discriminator.trainable_variables,
            lambda: self.loss_fn(labels, self.discriminator(ops.stop_gradient(images))),
        )
        misleading = ops.zeros((count, 1))
        update(
            self.g_optimizer,
            self.generator.trainable_variables,
            lambda: self.loss_fn(misleading, self.discriminator(self.generator(noise))),
        )
        self.d_loss_tracker.update_state(d_loss)
        return {"d_loss": self.d_loss_tracker.result()}


def functional(kind, compiled=True, **options):
    """Return a functional model of a class above with 6 inputs and 3 outputs."""
    inputs = keras.Input((6,))
    outputs = layers.Dense(3)(layers.Dense(16, "relu")(inputs))
    model = kind(inputs, outputs)
    if compiled:
        model.compile("adam", **options)
    return model


def gan():
    """Return a GAN of images with 6 pixels."""
    discriminator = keras.Sequential([keras.Input((6,)), layers.Dense(1)])
    generator = keras.Sequential([keras.Input((4,)), layers.Dense(6)])
    model = GAN(discriminator, generator)
    model.compile(
        keras.optimizers.Adam(0.0003),
        keras.optimizers.Adam(0.0003),
        keras.losses.BinaryCrossentropy(from_logits=True),
    )
    return model
