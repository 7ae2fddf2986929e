"""Layers with low memory use: a loss over a large vocabulary without its logits."""

from kerasmem.extras.chunked import ChunkedCrossentropy, ChunkedVocabulary

__all__ = ["ChunkedCrossentropy", "ChunkedVocabulary"]
