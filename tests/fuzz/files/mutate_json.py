"""JSON that says something else, or code where data is expected."""

import base64
import json
import marshal
from typing import Any

from tests.fuzz.graphs.operation import Draw

SENTINEL = "SENTINEL"
"""A file of this name in the working folder: something in a file was executed."""

_COMMAND = f"touch {SENTINEL}"
_DEEP = "@@DEEP@@"


def _lambda() -> dict[str, Any]:
    code = compile(f"lambda x: open({SENTINEL!r}, 'w') or x", "x", "eval").co_consts[0]
    text = base64.b64encode(marshal.dumps(code)).decode()
    return {
        "class_name": "__lambda__",
        "config": {"code": text, "defaults": None, "closure": None},
    }


def _code(draw: Draw) -> Any:
    """Return something that would run if it were followed."""
    return draw.choice(
        (
            _lambda(),
            {"module": "keras.layers", "class_name": "Lambda", "registered_name": None,
             "config": {"name": "l", "function": _lambda(), "arguments": {}}},
            {"module": "os", "class_name": "function", "config": "system",
             "registered_name": "system"},
            {"module": "os", "class_name": "system", "registered_name": None,
             "config": {"command": _COMMAND}},
            {"module": "subprocess", "class_name": "Popen", "registered_name": None,
             "config": {"args": _COMMAND, "shell": True}},
            {"module": "builtins", "class_name": "function", "config": "eval",
             "registered_name": "eval"},
            {"module": "keras.layers", "class_name": "TFSMLayer",
             "config": {"filepath": "."}, "registered_name": None},
            {"module": "keras.utils", "class_name": "get_file", "registered_name": None,
             "config": {"origin": "file:///etc/hostname", "fname": SENTINEL}},
        )
    )  # fmt: skip


def strange(draw: Draw) -> Any:
    """Return a value of another type or size than anybody expects."""
    kind = draw.choice(("plain", "plain", "plain", "large", "deep", "text", "code"))
    if kind == "plain":
        return draw.choice(
            (None, True, False, -1, 0, 1, 2, 0.5, -0.5, "", "relu", [], {}, [None],
             [1, 2, 3], {"a": 1}, "float32", "..", "\u0000", [[]], {"": {}})
        )  # fmt: skip
    if kind == "large":
        return draw.choice(
            (2**31, 2**63, 10**12, 10**30, 10**400, -(2**40), 1e308, float("nan"),
             float("inf"), 10**9, 10**6, [0] * 10**5)
        )  # fmt: skip
    if kind == "deep":
        return _DEEP
    if kind == "text":
        return draw.choice(
            ("x" * 10**5, "../../etc/passwd", "/etc/passwd", "a\nb", "<b>", "{{7*7}}",
             "%s%n", "\ud800", "é" * 99)
        )  # fmt: skip
    return _code(draw)


def mutated_json(text: str, draw: Draw) -> str:
    """Return JSON with a few values replaced, removed, renamed or swapped."""
    try:
        document = [json.loads(text)]
    except ValueError:
        return text[: draw.size(0, max(len(text), 1))]
    for _ in range(draw.choice((1, 1, 2, 4))):
        places = list(_places(document))
        _change(places, draw)
    return _text(document[0], draw)


def _places(node: Any, most: int = 3000) -> Any:
    """Yield `(container, key)` of every value."""
    waiting = [node]
    while waiting and most:
        inner = waiting.pop()
        items = inner.items() if isinstance(inner, dict) else enumerate(inner)
        for key, value in list(items):
            most -= 1
            yield inner, key
            if isinstance(value, dict | list):
                waiting.append(value)


def _change(places: list[tuple[Any, Any]], draw: Draw) -> None:
    container, key = draw.choice(places)
    how = draw.choice(
        (
            "replace",
            "replace",
            "replace",
            "number",
            "remove",
            "rename",
            "swap",
            "repeat",
        )
    )
    value = container[key]
    if how == "number" and isinstance(value, int | float):
        container[key] = draw.choice((value + 1, value - 1, -value, value * 1000))
    elif how == "remove" and len(places) > 1:
        container.pop(key)
    elif how == "rename" and isinstance(container, dict):
        container[draw.choice(("x", "", "name", "config", "class_name"))] = (
            container.pop(key)
        )
    elif how == "swap":
        other, place = draw.choice(places)
        container[key] = json.loads(json.dumps(other[place]))
    elif how == "repeat" and isinstance(container, list):
        container.extend([value] * draw.choice((1, 20)))
    else:
        container[key] = strange(draw)


def _text(document: Any, draw: Draw) -> str:
    text = json.dumps(document)
    count = draw.choice((50, 500, 5000, 200_000))
    left, right = draw.choice((("[", "]"), ('{"a":', "}")))
    inner = "1" if left != "[" else ""
    return text.replace(f'"{_DEEP}"', left * count + inner + right * count)


def mutated_yaml(text: str, draw: Draw) -> str:
    """Return YAML with tags, aliases, or other values."""
    how = draw.choice(("json", "json", "tag", "aliases", "lines", "merge"))
    if how == "tag":
        tag = draw.choice(
            (f"!!python/object/apply:os.system ['{_COMMAND}']",
             f"!!python/object/new:os.system ['{_COMMAND}']",
             "!!python/name:os.system", "!!binary aGVsbG8=", "!!timestamp 2001-01-01",
             "!!set {a, b}", "!!omap [a: 1]")
        )  # fmt: skip
        lines = text.splitlines()
        lines[draw.size(0, len(lines) - 1)] = f"x: {tag}"
        return "\n".join([*lines, ""])
    if how == "aliases":
        levels = draw.size(2, 12)
        lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
        lines += [
            f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, levels)
        ]
        return "\n".join([*lines, f"steps: *a{levels - 1}", ""])
    if how == "merge":
        return "steps: &s\n- {technique: prune, sparsity: 0.5}\n- *s\n"
    if how == "lines":
        lines = text.splitlines()
        draw.shuffle(lines)
        return "\n".join(lines)
    import yaml

    return mutated_json(json.dumps(yaml.safe_load(text)), draw)
