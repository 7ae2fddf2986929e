"""Is a peer's row beaten by kerasmem's?"""

NOISE = 0.005
"""About a standard error of the difference of two accuracies on 10,000 images; those
that are closer count as equal."""

SIZE, TIME = 0.01, 0.05
"""Shares by which sizes and step times must differ to count."""


def against(peer, ours):
    """Return how one row of kerasmem compares: what is better and what is worse.

    Returns:
        Two lists of words; both empty if the rows are as good as each other.
    """
    better, worse = [], []

    def compare(difference, least, words):
        if abs(difference) > least:
            (better if difference < 0 else worse).append(words[difference > 0])

    compare(peer.accuracy - ours.accuracy, NOISE, ("more accurate", "less accurate"))
    if peer.step_ms:
        compare(ours.step_ms / peer.step_ms - 1, TIME, ("faster", "slower"))
    if peer.file_bytes:
        ratio = ours.shipped_bytes / peer.shipped_bytes
        compare(ratio - 1, SIZE, ("smaller", "larger"))
    if peer.weight_bytes and ours.weight_bytes:
        ratio = ours.weight_bytes / peer.weight_bytes
        compare(ratio - 1, SIZE, ("less RAM", "more RAM"))
    return better, worse


def verdict(peer, candidates):
    """Return in words whether any of kerasmem's rows beats a peer's, and how.

    Args:
        peer: a row.
        candidates: kerasmem's rows of the same net, job and family of files.
    """
    if peer.accuracy is None:
        return "not measured"
    told = [(row, *against(peer, row)) for row in candidates if row.accuracy]
    if not told:
        return "-"
    for row, better, worse in told:
        if better and not worse:
            return f"beaten by {row.form}: {', '.join(better)}"
    for row, better, worse in told:
        if not better and not worse:
            return f"as good as {row.form}"
    row, better, worse = min(told, key=lambda one: len(one[2]))
    but = f" (but {', '.join(better)})" if better else ""
    return f"**not beaten**: {row.form} is {', '.join(worse)}{but}"
