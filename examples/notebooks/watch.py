# %% [markdown]
# # Watch a training
#
# Three callbacks show where memory goes and what gradients do. The images are those of the demo; nothing is downloaded.
# TensorFlow counts every allocation on a CPU only if it is asked to before it is imported; on a GPU leave these two lines out.

# %%
import os

os.environ["TF_CPU_ALLOCATOR_USE_BFC"] = "1"
os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"

import keras

import kerasmem as km
from kerasmem.demo.recipe import load_demo_data

keras.utils.set_random_seed(0)
(x, y), _ = load_demo_data()
x, y = x[:1000, ..., None] / 255.0, y[:1000]

# %% [markdown]
# A small network, compiled as always.

# %%
model = keras.Sequential(
    [
        keras.Input((28, 28, 1)),
        keras.layers.Conv2D(16, 3, activation="relu", name="conv"),
        keras.layers.MaxPooling2D(),
        keras.layers.Flatten(),
        keras.layers.Dense(64, activation="relu", name="hidden"),
        keras.layers.Dense(10, activation="softmax", name="head"),
    ]
)
model.compile("adam", "sparse_categorical_crossentropy", jit_compile=False)

# %% [markdown]
# The monitors go into `fit`, before callbacks that shall see their series.

# %%
memory = km.callbacks.MemoryMonitor()
gradients = km.callbacks.GradientMonitor()
timeline = km.callbacks.MemoryTimeline(steps=range(2, 4))
history = model.fit(
    x,
    y,
    batch_size=64,
    epochs=5,
    validation_split=0.1,
    verbose=0,
    callbacks=[memory, gradients, timeline],
)
print(sorted(history.history))

# %% [markdown]
# Memory by epoch: of the device, and of the process.

# %%
memory.plot()

# %% [markdown]
# The loss, and the norm of the whole gradient.

# %%
gradients.plot()

# %% [markdown]
# Two steps in full: activations rise in the forward pass, gradients in the backward pass.

# %%
timeline.plot()

# %% [markdown]
# What holds most at the peak, layer by layer.

# %%
fullest = timeline.timelines[0]
blocks = sorted(fullest.live(fullest.peak_event), key=lambda block: -block.given_bytes)
for block in blocks[:5]:
    print(f"{block.given_bytes / 2**20:6.2f} MiB  {block.layer}  {block.category}")

# %% [markdown]
# Leaks, dead layers, a training that diverges: what is wrong is told in words.

# %%
print(memory.findings + gradients.findings or "nothing is wrong")
