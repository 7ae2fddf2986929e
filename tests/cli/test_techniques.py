"""The options of `kerasmem compress` are the fields of techniques."""

import re
import subprocess
import sys
from dataclasses import fields

import pytest

import kerasmem as km
from kerasmem.checks import OneOf, rules_of
from kerasmem.cli.command import Parser
from kerasmem.cli.steps import STEPS, TECHNIQUES, options_of, techniques_of
from kerasmem.compression.recipe import read_recipe
from kerasmem.errors import ConfigError

pytestmark = pytest.mark.one_backend

IN_RECIPES = {"schedule", "ratios", "budget", "calibration"}
"""Fields that a command line cannot hold."""


def steps(line):
    parser = Parser()
    parser.add(STEPS)
    return techniques_of(parser.parse_args(line.split()))


@pytest.mark.parametrize("technique", TECHNIQUES)
def test_every_field_has_an_option_or_stands_in_recipes(technique):
    known = options_of(technique)
    assert set(known) == {f.name for f in fields(technique) if f.init} - IN_RECIPES
    first, *others = known.values()
    assert first.flags == (f"--{technique.name.replace('_', '-')}",)
    assert all(
        flag.startswith(f"{first.flags[0]}-") for each in others for flag in each.flags
    )
    assert all(option.settings["help"] for option in (first, *others))


@pytest.mark.parametrize("technique", TECHNIQUES)
def test_help_names_every_choice_and_the_default_once(technique):
    rules = rules_of(technique)
    for name, option in options_of(technique).items():
        kind, rule, _ = rules[name]
        words = option.settings["help"]
        if isinstance(rule, OneOf) and kind is not bool:
            assert [one for one in rule.allowed if one not in words] == []
        default = {f.name: f.default for f in fields(technique)}[name]
        assert words.count(f"({default})") + words.count(f": {default})") < 2


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", []),
        ("--prune 0.8", [km.Prune(0.8)]),
        (
            "--quantize int4 --prune 0.5 --prune-channels 0.25",
            [km.PruneChannels(0.25), km.Prune(0.5), km.Quantize("int4")],
        ),
        ("--prune 0.5 --prune-pattern 4x4", [km.Prune(0.5, pattern=(4, 4))]),
        (
            "--prune 0.5 --prune-scope global --prune-criterion magnitude "
            "--prune-pattern 2:4 --prune-include a --prune-include b "
            "--prune-exclude c --prune-seed 3",
            [
                km.Prune(
                    0.5,
                    scope="global",
                    criterion="magnitude",
                    pattern="2:4",
                    include=("a", "b"),
                    exclude="c",
                    seed=3,
                )
            ],
        ),
        (
            "--prune-channels 0.5 --prune-channels-of parameters "
            "--prune-channels-rounds 2 --no-prune-channels-verify",
            [km.PruneChannels(0.5, of="parameters", rounds=2, verify=False)],
        ),
        (
            "--quantize int8 --no-quantize-symmetric --quantize-granularity group "
            "--quantize-group-size 64",
            [km.Quantize(granularity="group", group_size=64, symmetric=False)],
        ),
    ],
)
def test_options_are_the_configs_that_they_name(line, expected):
    assert steps(line) == expected


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "--prune-scope global",
            "--prune-scope is an option of --prune. Next: add --prune[.]",
        ),
        ("--prune-channels-rounds 2", "Next: add --prune-channels[.]"),
        ("--quantize-group-size 64", "Next: add --quantize[.]"),
        ("--prune 0.5 --prune-scope globl", "scope='globl'. Did you mean 'global'"),
        ("--quantize mixed", "needs a budget.* On the command line, .*--recipe"),
    ],
)
def test_what_does_not_fit_together_is_an_error(line, message):
    with pytest.raises(ConfigError, match=message):
        steps(line)


def test_the_recipe_in_the_message_about_budgets_is_one(tmp_path):
    with pytest.raises(ConfigError) as caught:
        steps("--quantize mixed")
    (recipe,) = re.findall(r"\[\{.*\}\]", str(caught.value))
    (tmp_path / "mixed.json").write_text(recipe)
    assert read_recipe(tmp_path / "mixed.json") == (
        km.Quantize("mixed", budget=km.Budget("2MiB")),
    )


@pytest.mark.parametrize("technique", TECHNIQUES)
def test_the_help_of_an_option_is_more_than_its_type(technique):
    for known in options_of(technique).values():
        text = known.settings["help"]
        assert len(text.partition(" (default: ")[0].split()) > 4, text
        assert "Defaults to" not in text
    (first, *_) = options_of(km.PruneChannels).values()
    assert first.settings["help"] == (
        "Float in [0, 1). Fraction of the channels to remove, or of the quantity that "
        "--prune-channels-of selects."
    )


@pytest.mark.parametrize(
    ("technique", "field", "text"),
    [
        (km.Prune, "exclude", "Regular expression of weight paths or layer class"),
        (km.Prune, "exclude", ". Repeatable."),
        (km.Prune, "pattern", 'by maximum with "max 4x4": 8x1 is 8 inputs'),
        (km.PruneChannels, "ignore", "Regular expression of weight paths. "),
        (km.Quantize, "group_size", "implies --quantize-granularity group (default: 1"),
        (
            km.Quantize,
            "scales",
            "(default: max, or mse for int4 without --quantize-granularity",
        ),
        (km.Quantize, "rounding", "need --data and symmetric"),
    ],
)
def test_help_is_that_of_a_shell(technique, field, text):
    assert text in options_of(technique)[field].settings["help"]


def test_options_are_read_without_keras_or_numpy(new_interpreter):
    program = (
        "import sys; sys.argv = ['kerasmem', 'compress', '--help']\n"
        "from kerasmem.cli.main import build_parser\n"
        "build_parser()\n"
        "print({'keras', 'numpy', 'yaml'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"
