"""A spec drafts as it says or is refused in words, and its defaults do not change unnoticed."""

import json
from pathlib import Path

import pytest

from specdec.compose import build
from specdec.config.catalog import load_catalog
from specdec.config.resolver import check, read
from specdec.config.strategy_spec import StrategySpec
from specdec.errors import IncompatibleParts, SpecError
from specdec.interfaces.declarations import Kind

GOLDEN = Path(__file__).parents[1] / "data" / "spec_defaults.json"
TABLE = {"use": "tabular", "vocab": 6, "random": {"seed": 1}}


@pytest.fixture(scope="module")
def catalog():
    return load_catalog()


def plan_of(catalog, *settings, **keys):
    return check(read({"target": TABLE, "drafter": {"use": "ngram"}, **keys}, catalog, settings=settings), catalog)


@pytest.mark.parametrize(
    ("sampling", "temperature", "draft"),
    [
        ({}, 0.0, {"temperature": 1.0}),
        ({"temperature": 0.7}, 0.7, {"temperature": 0.7}),
        ({"top_k": 3}, 1.0, {"temperature": 1.0, "top_k": 3}),
        ({"temperature": 0.7, "draft": {"temperature": 1.5}}, 0.7, {"temperature": 1.5}),
        ({"temperature": 0.7, "draft": {"temperature": 0.0}}, 0.7, {"temperature": 0.0}),
    ],
)
def test_the_resolved_spec_says_the_temperatures_of_target_and_drafts(catalog, sampling, temperature, draft):
    resolved = plan_of(catalog, sampling=sampling)
    plain_spec = resolved.plain()
    assert plain_spec["sampling"]["temperature"] == temperature
    assert plain_spec["sampling"]["draft"] == draft
    again = check(read(plain_spec, catalog), catalog)
    assert again.plain() == plain_spec
    assert again.spec.sampling.draft_truncation == resolved.spec.sampling.draft_truncation


# What passes the check drafts


SHAPES = {"fixed": {"widths": [2, 1]}, "sampled": {"widths": [2, 1]}}
OWN = {"model": {"model": "target"}, "tabular": {"mode": "oracle"}, "ngram": {"min_confidence": 0.0}}
PROMPT = [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5, 0, 1, 2]


@pytest.mark.parametrize("drafter", OWN)
@pytest.mark.parametrize("verifier", ["match", "point_mass", "chain", "multi_round"])
@pytest.mark.parametrize("tree", [{}, {"draw": "sampled"}, "fixed", "dynamic", "sampled"], ids=str)
def test_a_spec_with_a_drafter_is_refused_or_drafts(catalog, drafter, tree, verifier):
    tree = {"use": tree, **SHAPES.get(tree, {})} if isinstance(tree, str) else {"use": "chain", **tree}
    spec = {
        "target": TABLE,
        "drafter": {"use": drafter, **OWN[drafter]},
        "tree": tree,
        "verifier": {"use": verifier},
        "sampling": {"temperature": 1.0},
    }
    try:
        resolved = check(read(spec, catalog), catalog)
    except IncompatibleParts:
        return
    [answer] = build(resolved, catalog).generate([PROMPT], max_new_tokens=20, seed=1)
    assert sum(record.drafted for record in answer.records) > 0


def test_the_drafter_none_is_named_in_the_resolved_spec_and_drafts_nothing(catalog):
    resolved = plan_of(catalog, drafter={"use": "none"})
    assert resolved.plain()["drafter"] == {"use": "none"}
    [answer] = build(resolved, catalog).generate([PROMPT], max_new_tokens=9)
    assert sum(record.drafted for record in answer.records) == 0


# Numbers are looked at where they are given


NUMBERS = [
    (0, "got 0, expected at least 1"),
    (-1, "got -1, expected at least 1"),
    (1.9, "got 1.9, expected a whole number"),
    ("3", 'got "3", expected a whole number'),
    (True, "got true, expected a whole number"),
    (10**6, "got 1000000, expected at most 256"),
]


@pytest.mark.parametrize(("value", "message"), NUMBERS)
@pytest.mark.parametrize("tree", [("chain", "length"), ("dynamic", "depth"), ("dynamic", "width")])
def test_a_wrong_number_is_one_line_with_key_value_and_range(catalog, tree, value, message):
    name, key = tree
    with pytest.raises(SpecError) as caught:
        plan_of(catalog, tree={"use": name, key: value})
    assert str(caught.value).endswith(f"tree.{key}: {message}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", ["0", "-1", "1.9", "'3'", "true", "1000000"])
def test_a_wrong_number_of_the_command_line_is_one_line_too(catalog, value):
    with pytest.raises(SpecError, match=r"^--set tree.length=.*: tree.length: got .*, expected [^\n]*$"):
        plan_of(catalog, f"tree.length={value}")


def test_an_absent_number_is_the_parts_default(catalog):
    assert plan_of(catalog).plain()["tree"] == {"use": "chain", "length": 5, "draw": "deterministic"}


# Defaults are pinned


def defaults(catalog):
    """Every key of a spec, with its default; a key that must be given says so."""

    def of(model):
        fields = model.model_fields.items()
        return {k: "(required)" if f.is_required() else f.get_default(call_default_factory=True) for k, f in fields}

    parts = {f"{kind}: {name}": of(r.cls.Options) for kind in Kind for name, r in catalog.registry.parts[kind].items()}
    spec = of(StrategySpec)
    everything = {"spec": {**spec, "sampling": of(type(spec["sampling"]))}, **parts}
    return json.loads(json.dumps(everything, default=lambda value: value.model_dump()))


def test_the_defaults_of_every_key_are_those_of_the_golden_file(catalog):
    golden, found = json.loads(GOLDEN.read_text()), defaults(catalog)
    assert {name: found[name] for name in found if registered_here(catalog, name)} == golden


def registered_here(catalog, name):
    """Whether a part ships with specdec: plug-ins that happen to be installed are not pinned."""
    kind, _, part = name.partition(": ")
    return name == "spec" or catalog.registry.parts[Kind(kind)][part].package == "specdec"
