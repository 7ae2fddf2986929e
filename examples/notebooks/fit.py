# %% [markdown]
# # Fit a model that does not fit
#
# A batch of 512 of this network needs more than the 128 MiB that we allow ourselves. First the estimate, before anything runs.

# %%
import keras

import kerasmem as km
from kerasmem.demo.recipe import load_demo_data

keras.utils.set_random_seed(0)
(x, y), _ = load_demo_data()
x, y = x[:1024, ..., None] / 255.0, y[:1024]
LIMIT = "128MiB"

blocks = [
    keras.layers.Conv2D(8, 3, padding="same", activation="relu", name=f"conv_{i}")
    for i in range(8)
]
model = keras.Sequential(
    [
        keras.Input((28, 28, 1)),
        *blocks,
        keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dense(10, activation="softmax"),
    ]
)
model.compile("adam", "sparse_categorical_crossentropy", jit_compile=False)

# %%
estimate = km.estimate_memory(model, batch_size=512)
estimate.plot()

# %%
print(estimate.verdict(LIMIT))

# %% [markdown]
# ## Smaller micro-batches
#
# `km.fit` splits what does not fit and keeps the effective batch: 512 samples make one update.

# %%
history = km.fit(model, x, y, batch_size=512, epochs=1, memory_limit=LIMIT, verbose=0)
print(history.history["loss"])

# %% [markdown]
# ## Gradient checkpointing
#
# `km.rematerialize` keeps a part of the activations and computes the rest again in the backward pass: one line, the whole batch at once.

# %%
lean = km.rematerialize(model, batch_size=512)
lean_estimate = km.estimate_memory(lean, batch_size=512)
lean_estimate.plot()

# %%
print(f"{estimate.peak_bytes / 2**20:.0f} MiB before, ", end="")
print(f"{lean_estimate.peak_bytes / 2**20:.0f} MiB with checkpoints: ", end="")
print(lean_estimate.verdict(LIMIT))
lean.fit(x, y, batch_size=512, epochs=1, verbose=0).history["loss"]
