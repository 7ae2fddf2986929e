"""Teach a small model what a large one knows.

Run it: `python examples/teacher_to_student.py`
"""

import keras

import kerasmem as km
from kerasmem.demo.recipe import load_demo_data

IMAGES = 2000  # a quarter of those that kerasmem carries, so that this takes seconds


def classifier(units: int) -> keras.Model:
    """Return an untrained classifier of 28x28 images that gives logits."""
    model = keras.Sequential(
        [
            keras.Input((28, 28)),
            keras.layers.Rescaling(1 / 255),
            keras.layers.Flatten(),
            keras.layers.Dense(units, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    return model


def main() -> dict[str, float]:
    """Train a teacher, distill it, and return the accuracy of both on test images."""
    keras.utils.set_random_seed(0)
    (x, y), test = load_demo_data()
    x, y = x[:IMAGES], y[:IMAGES]

    teacher = classifier(units=256)
    teacher.fit(x, y, epochs=6, verbose=0)
    student = km.distill(teacher, classifier(units=16), (x, y), epochs=10, verbose=0)

    accuracies = {}
    for name, model in {"teacher": teacher, "student": student}.items():
        found = model.evaluate(*test, batch_size=500, verbose=0, return_dict=True)
        accuracies[name] = found["accuracy"]
        print(f"{name}: {model.count_params():,} parameters, {found['accuracy']:.3f}")
    return accuracies


if __name__ == "__main__":
    main()
