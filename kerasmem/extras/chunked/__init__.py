"""Output layer and loss of a language model that never hold all logits in memory."""

from kerasmem.extras.chunked.vocabulary import ChunkedCrossentropy, ChunkedVocabulary

__all__ = ["ChunkedCrossentropy", "ChunkedVocabulary"]
