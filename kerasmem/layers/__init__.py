"""Layers that keep less: the end of a language model, whose logits are never whole."""

from kerasmem.layers.chunked_training import ChunkedCrossentropy
from kerasmem.layers.chunked_vocabulary import ChunkedVocabulary

__all__ = ["ChunkedCrossentropy", "ChunkedVocabulary"]
