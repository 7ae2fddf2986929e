"""Counts of the language: translated English in texts, participles as local names."""

import ast
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache

from tests.scopes import Function, scopes

PATTERNS = {
    "what": r"\bwhat\b",
    "tell, told, says": r"\b(?:tells?|told|telling|says|said)\b",
    "that of": r"\b(?:that|those) of\b",
    "of its own": r"\bof (?:its|their|one's|your|his) own\b",
    "of which": r"\bof which\b",
    "odd adverb": r"\b(?:anew|likewise|as ever|mostly|beside|besides|foretells?|thereof"
    r"|hereof|alone|for good)\b",
    "begins with Of": r"(?m)(?:^|[.;:] )(?-i:Of)\b",
    "made of": r"\b(?:is|are|was|were) (?:made|given|held|kept) of\b",
    "so many": r"\bso (?:many|much|few|long)\b",
}
VAGUE_ARGUMENT = r"(?m)^\s{4,}\w+: (?:it|them|likewise|its own|the same)\.?\s*$"
LONGEST_SENTENCE = 25
"""Most words of a sentence, and of a cell of a table."""
SENTENCE_END = (
    r"[.!?:;][*_\")]*\s|\n\s*\n|\n\s*(?:[-*+]|\d+\.|>)\s"
    r"|\n#+ |\||\n\s*[\w*.]+: "
)
"""Ends of sentences, paragraphs, list entries, arguments and cells."""
SHORTEST_MESSAGE = 4
"""Number of words from which a text in the code counts as a message."""
PARTICIPLE = (
    r"[a-z]{2,}ed|begun|bought|broken|brought|built|caught|chosen|done|drawn|driven"
    r"|fallen|felt|found|given|gone|grown|heard|held|kept|known|laid|led|left|lent|lost"
    r"|made|meant|met|paid|said|seen|sent|shown|sold|sought|spent|stood|taken|taught"
    r"|thought|thrown|told|undone|understood|won|worn|written"
)
NOUNS = {"embed", "exceed", "feed", "indeed", "need", "proceed", "seed", "speed"}
"""Words that end like a participle and are none."""


@dataclass
class Prose:
    """Words and patterns of the texts of one kind."""

    words: int = 0
    hits: Counter[str] = field(default_factory=Counter)
    files: Counter[str] = field(default_factory=Counter)
    long: list[str] = field(default_factory=list)

    def add(self, file: str, text: str) -> None:
        """Count one text."""
        text = plain(text)
        self.words += len(text.split())
        hits = {name: len(regex.findall(text)) for name, regex in _compiled().items()}
        self.hits.update(hits)
        self.files[file] += sum(hits.values())
        self.long += [f"{file}: {sentence}" for sentence in long_sentences(text)]

    @property
    def rate(self) -> float:
        """Patterns per 1,000 words."""
        return 1000 * self.hits.total() / max(self.words, 1)


def plain(text: str) -> str:
    """Return a text without examples and code."""
    text = re.sub(r">>> .*|\.\.\. .*", "", text)
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    return re.sub(r"`[^`\n]*`", "X", text)


def long_sentences(text: str) -> list[str]:
    """Return the sentences of more than `LONGEST_SENTENCE` words."""
    sentences = re.split(SENTENCE_END, text)
    return [
        " ".join(one.split())
        for one in sentences
        if len(re.findall(r"\w[\w'-]*", one)) > LONGEST_SENTENCE
    ]


def is_message(text: ast.Constant) -> bool:
    """Return whether a constant is a sentence or a part of one."""
    return isinstance(text.value, str) and len(text.value.split()) >= SHORTEST_MESSAGE


def participles(modules: Iterable[ast.AST]) -> Counter[str]:
    """Return how often a local variable is named by a participle alone.

    Beside a variable `right`, `left` is a side.
    """
    names = Counter[str]()
    for module in modules:
        for scope in scopes(module):
            if isinstance(scope.node, Function | ast.Lambda):
                stores = [
                    node.id
                    for node in scope.nodes
                    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
                ]
                sides = {"left"} if "right" in stores else set()
                names.update(x for x in stores if is_participle(x) and x not in sides)
    return names


def is_participle(name: str) -> bool:
    """Return whether a name is a participle without a noun."""
    name = name.strip("_")
    return name not in NOUNS and re.fullmatch(PARTICIPLE, name) is not None


@cache
def _compiled() -> dict[str, re.Pattern[str]]:
    return {name: re.compile(text, re.IGNORECASE) for name, text in PATTERNS.items()}
