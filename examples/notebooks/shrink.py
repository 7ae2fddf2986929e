# %% [markdown]
# # Shrink a saved model
#
# A trained file goes in, a smaller one comes out, with figures of both. First a file to have one.

# %%
from pathlib import Path

import keras

import kerasmem as km
from kerasmem.demo.recipe import load_demo_data

keras.utils.set_random_seed(0)
(x, y), (x_test, y_test) = load_demo_data()
train, test = (x[:3000] / 255.0, y[:3000]), (x_test[:1000] / 255.0, y_test[:1000])
model = keras.Sequential(
    [
        keras.Input((28, 28)),
        keras.layers.Flatten(),
        keras.layers.Dense(256, activation="relu", name="hidden"),
        keras.layers.Dense(10, activation="softmax", name="classes"),
    ]
)
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
model.fit(*train, batch_size=64, epochs=4, verbose=0)
model.save("model.keras")

# %% [markdown]
# Four in five weights become zero, the rest int8. Two epochs of training after pruning bring back what that cost.

# %%
steps = [km.Prune(0.8), km.Quantize("int8")]
result = km.compress(
    "model.keras", steps, data=train, validation_data=test, fine_tune_epochs=2
)
result.plot()

# %% [markdown]
# Every weight, changed or left alone, with the reason.

# %%
for change in result.changes:
    print(change.weight, change.technique, change.changed, change.detail)

# %%
result.save("small.keras")
print({path.name: path.stat().st_size for path in sorted(Path().glob("*.keras"))})
reloaded = km.load_model("small.keras")
print(reloaded.evaluate(*test, verbose=0, return_dict=True))

# %% [markdown]
# A card for the Hugging Face Hub says what was done and what it cost.

# %%
print(result.model_card("Small", license="apache-2.0")[:600])
