# %% [markdown]
# # QLoRA
#
# A model is quantized to four bits and taught something new: its kernels stay as they are, small matrices beside them are trained
# (Dettmers et al., "QLoRA: Efficient Finetuning of Quantized LLMs", 2023). The network is small enough for a notebook; the calls
# are the same for a transformer of KerasHub.

# %%
import keras

import kerasmem as km
from kerasmem.demo.recipe import load_demo_data

keras.utils.set_random_seed(0)
(x, y), (x_test, y_test) = load_demo_data()
x, y, x_test, y_test = x[:3000] / 255.0, y[:3000], x_test[:1000] / 255.0, y_test[:1000]
model = keras.Sequential(
    [
        keras.Input((28, 28)),
        keras.layers.Flatten(),
        keras.layers.Dense(256, activation="relu", name="first"),
        keras.layers.Dense(256, activation="relu", name="second"),
        keras.layers.Dense(10, activation="softmax", name="classes"),
    ]
)
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
model.fit(x, y, batch_size=64, epochs=3, verbose=0)
print(model.evaluate(x_test, y_test, verbose=0, return_dict=True))

# %% [markdown]
# The new task: the same images upside down. The model does not know them.

# %%
turned, turned_test = x[:, ::-1], x_test[:, ::-1]
print(model.evaluate(turned_test, y_test, verbose=0, return_dict=True))

# %%
result = km.compress(model, km.Quantize("int4", granularity="group", group_size=64))
result.plot()

# %% [markdown]
# Ranks of 8 beside the quantized kernels; only they and the biases are trained.

# %%
small = result.model
for name in ("first", "second"):
    small.get_layer(name).enable_lora(8)
small.compile(
    keras.optimizers.Adam(2e-3),
    "sparse_categorical_crossentropy",
    metrics=["accuracy"],
)
trainable = sum(weight.numpy().size for weight in small.trainable_weights)
print(f"{trainable:,} of {model.count_params():,} parameters are trained")

# %%
plain = km.estimate_memory(model, batch_size=64, device="cpu")
adapted = km.estimate_memory(small, batch_size=64, device="cpu")
print(f"peak of a step: {plain.peak_bytes / 2**20:.2f} MiB in full, ", end="")
print(f"{adapted.peak_bytes / 2**20:.2f} MiB with int4 and LoRA")
adapted.plot(layers=4)

# %%
gradients = km.callbacks.GradientMonitor()
small.fit(turned, y, batch_size=64, epochs=4, verbose=0, callbacks=[gradients])
print(small.evaluate(turned_test, y_test, verbose=0, return_dict=True))
gradients.plot()

# %% [markdown]
# One file holds both, and opens as it was.

# %%
km.save_model(small, "adapted.keras")
reloaded = km.load_model("adapted.keras")
print(reloaded.evaluate(turned_test, y_test, verbose=0, return_dict=True))
