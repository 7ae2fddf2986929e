"""Layers that keep less: the end of a language model, whose logits are never whole."""

from kerasmem.extras.chunked.training import ChunkedCrossentropy
from kerasmem.extras.chunked.vocabulary import ChunkedVocabulary

__all__ = ["ChunkedCrossentropy", "ChunkedVocabulary"]
