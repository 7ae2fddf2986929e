# %% [markdown]
# # Distill
#
# A small student learns from a large teacher (Hinton et al., "Distilling the Knowledge in a Neural Network", 2015).

# %%
import keras

import kerasmem as km
from kerasmem.demo.recipe import load_demo_data

keras.utils.set_random_seed(0)
(x, y), (x_test, y_test) = load_demo_data()
train, few = (x / 255.0, y), (x[:500] / 255.0, y[:500])
test = x_test[:1000] / 255.0, y_test[:1000]
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def compiled(model):
    model.compile(keras.optimizers.Adam(2e-3), loss, metrics=["accuracy"])
    return model


teacher = compiled(
    keras.Sequential(
        [
            keras.Input((28, 28)),
            keras.layers.Flatten(),
            keras.layers.Dense(256, activation="relu"),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(256, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
)
teacher.fit(*train, batch_size=64, epochs=6, verbose=0)
print(teacher.evaluate(*test, verbose=0, return_dict=True))

# %% [markdown]
# A student of a tenth of the parameters, made of the teacher, has 500 images to learn from: first by their labels alone, then from the teacher too.

# %%
student = compiled(km.make_student(teacher, ratio=0.1))
print(
    f"{teacher.count_params():,} parameters, {student.count_params():,} of the student"
)
start = student.get_weights()
student.fit(*few, batch_size=32, epochs=30, verbose=0)
print("labels alone:", student.evaluate(*test, verbose=0, return_dict=True))
student.set_weights(start)
compiled(student)

# %%
gradients = km.callbacks.GradientMonitor()
taught = km.distill(
    teacher,
    student,
    few,
    epochs=30,
    batch_size=32,
    callbacks=[gradients],
    verbose=0,
    seed=0,
)
print("with the teacher:", taught.evaluate(*test, verbose=0, return_dict=True))

# %% [markdown]
# The loss of distillation and its gradient, epoch by epoch.

# %%
gradients.plot()

# %%
km.save_model(taught, "student.keras")
print(km.load_model("student.keras").count_params())
