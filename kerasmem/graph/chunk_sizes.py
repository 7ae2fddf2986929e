"""Sizes of the pieces in which a chunked vocabulary computes its logits."""

CHUNKS, LEAST_ROWS, PARTS = 32, 128, 16
"""Chunks of the rows, fewest rows of a chunk, and parts of the vocabulary."""


def rows_of_chunk(rows: int) -> int:
    """Return the number of rows whose logits are in memory at once."""
    return min(max(-(-rows // CHUNKS), LEAST_ROWS), rows)
