"""Post-mortems in a run's folder, a line each."""

import os

from kerasmem.files.journal import Journal
from kerasmem.files.run_dir import file_name
from kerasmem.records import PostMortem


def add_post_mortem(log_dir: str | os.PathLike[str] | None, found: PostMortem) -> None:
    """Write a post-mortem into a run's folder, behind those that are there.

    Args:
        log_dir: the folder, made if it is not there; None for no folder.
        found: the post-mortem.

    Raises:
        OSError: if it cannot be written.
    """
    name = file_name("post_mortems", ".jsonl", found.process)
    Journal(log_dir, name).append(found.to_json())
