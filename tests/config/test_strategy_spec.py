"""Reading strategy files: every mistake at once, with its line; nothing coerced; `extends` and overrides."""

from pathlib import Path
from textwrap import dedent

import pytest

from specdec.config.strategy_spec import Reading, read_spec
from specdec.errors import SpecdecError, SpecError, UnknownPart

RIGHT = """\
name: right
source: nowhere
drafter: {use: ngram}
tree:
  use: dynamic
  width: 4
verifier: {use: match}
sampling: {temperature: 1, logit_bias: {5: 1.0}}
"""


@pytest.fixture
def write(tmp_path):
    def write(text: str, name: str = "x") -> Path:
        path = tmp_path / f"{name}.yaml"
        path.write_text(dedent(text), encoding="utf-8")
        return path

    return write


def read(path: Path, **options) -> Reading:
    def find(name: str) -> Path:
        found = path.parent / f"{name}.yaml"
        if not found.exists():
            raise UnknownPart(f"no strategy is called '{name}'")
        return found

    return read_spec(path, find_strategy=find, **options)


def messages(reading: Reading) -> list[str]:
    return [str(p).replace(f"{reading.folder}/", "") for p in reading.problems]


def test_a_right_file_reads_without_problems(write):
    reading = read(write(RIGHT))
    assert messages(reading) == []
    assert reading.spec.tree.use == "dynamic"
    assert reading.spec.tree.options == {"width": 4}
    assert reading.spec.sampling.logit_bias == {5: 1.0}
    assert reading.spec.target.use == "builtin"


def test_the_name_of_a_file_is_the_name_of_a_spec_that_has_none(write):
    assert read(write("drafter: {use: none}", "mine")).spec.name == "mine"


def test_all_mistakes_are_reported_at_once_each_with_its_line(write):
    path = write(
        """\
        nam: x
        drafter:
          use: 3
        tree: [chain]
        sampling:
          temperature: warm
          top_k: 1.5
        allow_lossy: "no"
        """
    )
    assert messages(read(path)) == [
        "x.yaml:3: drafter.use: got 3, expected text",
        'x.yaml:4: tree: got ["chain"], expected a mapping of keys to values',
        'x.yaml:6: sampling.temperature: got "warm", expected a number',
        "x.yaml:7: sampling.top_k: got 1.5, expected a whole number",
        'x.yaml:8: allow_lossy: got "no", expected true or false',
        "x.yaml:1: nam: unknown key; did you mean 'name'?",
    ]


@pytest.mark.parametrize("value", ["1.9", '"3"', "true", "1.0", "null_", "[1]"])
def test_nothing_but_a_whole_number_is_one(write, value):
    found = messages(read(write(f"drafter: {{use: none}}\nsampling: {{seed: {value}}}\n")))
    assert len(found) == 1
    assert "x.yaml:2: sampling.seed: got" in found[0]
    assert "expected a whole number" in found[0]


@pytest.mark.parametrize("value", ["true", '"1"', ".nan", ".inf"])
def test_nothing_but_a_finite_number_is_a_temperature(write, value):
    found = messages(read(write(f"drafter: {{use: none}}\nsampling: {{temperature: {value}}}\n")))
    assert len(found) == 1
    assert "sampling.temperature: got" in found[0]


def test_one_thousandth_may_be_written_with_an_exponent(write):
    assert read(write("drafter: {use: none}\nsampling: {temperature: 1e-3}")).spec.sampling.temperature == 0.001


def test_no_and_yes_are_words(write):
    assert read(write("drafter: {use: none}\ndescription: no")).spec.description == "no"


def test_a_key_given_twice_is_a_mistake_at_its_second_line(write):
    found = messages(read(write("drafter: {use: none}\nname: a\nname: b\n")))
    assert found == ["x.yaml:3: name: given twice; first at line 2"]


def test_a_nested_key_given_twice_is_one_too(write):
    assert "drafter.use: given twice" in messages(read(write("drafter: {use: none, use: ngram}")))[0]


def test_text_that_is_not_yaml_names_its_line(write):
    with pytest.raises(SpecError, match=r"x\.yaml:2: not YAML"):
        read(write("name: x\n  drafter: [\n"))


def test_a_list_is_not_a_spec(write):
    [found] = messages(read(write("- 1\n- 2\n")))
    assert "got a list, expected a mapping" in found


def test_an_empty_file_lacks_a_drafter(write):
    assert messages(read(write(""))) == ["x.yaml:1: drafter: is required: what proposes tokens"]


def test_a_file_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(SpecError, match=r"gone\.yaml: cannot be read"):
        read(tmp_path / "gone.yaml")


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)

REFUSED = {
    "a value that contains itself": ("drafter: &a {use: none, more: *a}", "x.yaml:1: &a: anchors and aliases"),
    "an alias bomb": (BOMB, "x.yaml:2: [&]b: anchors and aliases are not understood; write the value out"),
    "a language tag": ("drafter: {use: none}\nname: !!python/name:os.system x\n", "x.yaml:2: the tag !!python/name:os.system"),
    "a tag of its own": ("drafter: !none {use: none}", "x.yaml:1: the tag !none is not understood"),
    "a number's tag": ("sampling: {seed: !!int abc}", "x.yaml:1: the tag !!int is not understood"),
    "a text's tag": ("name: !!str 3", "the tag !!str is not understood; a text is written in quotes"),
    "lists too deep": ("name: " + "[" * 5000, "x.yaml:1: nested deeper than 32 levels"),
    "mappings too deep": ("".join(f"{' ' * n}a:\n" for n in range(400)), "nested deeper than 32 levels"),
    "too long": ("#" * 1_000_001, "has 1000001 characters"),
    "control characters": ("name: \x07", "not YAML: unacceptable character"),
}


@pytest.mark.parametrize(("text", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_yaml_that_no_spec_needs_is_refused(write, text, message):
    with pytest.raises(SpecError, match=message):
        read(write(text))


@pytest.mark.parametrize("digits", ["1" * 5000, "-" + "1" * 5000, "1" * 5000 + ".5", "1" * 5000 + "e1"])
def test_a_number_too_long_to_be_read_is_a_mistake(write, digits):
    found = messages(read(write(f"drafter: {{use: none}}\nsampling: {{seed: {digits}}}\n")))
    assert found[0].startswith("x.yaml:2: sampling.seed: got a number of 500")
    assert len(found[0]) < 200
    assert "got a number of" in messages(read(write("drafter: {use: none}"), settings=[f"sampling.seed={digits}"]))[0]


def test_a_number_too_large_for_its_key_is_a_short_mistake(write):
    [found] = messages(read(write(f"drafter: {{use: none}}\nsampling: {{seed: {'9' * 900}}}\n")))
    assert found.startswith("x.yaml:2: sampling.seed: got 9999")
    assert found.endswith("..., expected less than 9223372036854775808")


@pytest.mark.parametrize("keys", ["'5': 1.0, 5: 2.0", "03: 1.0, 3: 2.0", "5: 1.0, +5: 2.0"])
def test_keys_that_are_written_differently_and_mean_the_same_are_given_twice(write, keys):
    found = messages(read(write(f"drafter: {{use: none}}\nsampling: {{logit_bias: {{{keys}}}}}\n")))
    assert any("given twice; first at line 2" in message for message in found)


def test_keys_of_a_mapping_that_mean_the_same_are_given_twice():
    data = {"drafter": {"use": "none"}, "sampling": {"logit_bias": {"5": 1.0, 5: 2.0}}}
    problems = [str(p) for p in read_spec(data, find_strategy=Path).problems]
    assert problems == ["the given mapping: sampling.logit_bias.5: given twice, as a text and as a number"]


def test_an_override_replaces_a_key_however_that_is_written(write):
    path = write("drafter: {use: none}\nsampling: {logit_bias: {'5': 1.0}}\n")
    assert read(path, settings=["sampling.logit_bias.5=2"]).spec.sampling.logit_bias == {5: 2.0}


WORDS = {
    "sampling: null": "sampling: got null, expected a mapping of keys to values",
    "sampling: 3": "sampling: got 3, expected a mapping of keys to values",
    "sampling: {draft: 3}": "sampling.draft: got 3, expected a mapping of keys to values or null",
    "sampling: {logit_bias: [1]}": "sampling.logit_bias: got [1], expected a mapping of keys to values",
    "sampling: {logit_bias: {a: 1.0}}": "sampling.logit_bias.a: got the key 'a', expected a whole number",
    "sampling: {temperature: -1}": "sampling.temperature: got -1, expected at least 0",
    "sampling: {top_p: 2}": "sampling.top_p: got 2, expected at most 1",
    'name: ""': 'name: got "", expected a text of at least 1',
    "source: [a]": 'source: got ["a"], expected text',
    "tree: 3": "tree: got 3, expected a mapping of keys to values",
}


@pytest.mark.parametrize(("line", "words"), WORDS.items())
def test_a_mistake_is_said_in_plain_words(write, line, words):
    [found] = messages(read(write(f"drafter: {{use: none}}\n{line}\n")))
    assert found.removeprefix("x.yaml:2: ").removesuffix(" or null") == words.removesuffix(" or null")


# --- extends --------------------------------------------------------------------------------------------------------


def test_a_child_inherits_all_but_the_name(write):
    write(RIGHT, "base")
    spec = read(write("extends: base\nsampling: {temperature: 0}\n", "child")).spec
    assert (spec.name, spec.source, spec.drafter.use) == ("child", "nowhere", "ngram")
    assert spec.sampling.temperature == 0
    assert spec.sampling.logit_bias == {5: 1.0}


def test_options_are_merged_while_the_part_is_the_same(write):
    write(RIGHT, "base")
    assert read(write("extends: base\ntree: {depth: 3}\n", "child")).spec.tree.options == {"width": 4, "depth": 3}


def test_another_part_starts_afresh(write):
    write(RIGHT, "base")
    assert read(write("extends: base\ntree: {use: chain}\n", "child")).spec.tree.options == {}


def test_an_inherited_mistake_is_reported_in_the_file_that_made_it(write):
    write("drafter: {use: none}\nsampling: {seed: x}\n", "base")
    assert "base.yaml:2: sampling.seed" in messages(read(write("extends: base\n", "child")))[0]


def test_a_circle_is_a_mistake_that_names_its_members(write):
    write("extends: b\ndrafter: {use: none}\n", "a")
    path = write("extends: a\ndrafter: {use: none}\n", "b")
    assert "goes round in a circle: b -> a -> b" in messages(read(path))[0]


def test_a_parent_that_does_not_exist_is_a_mistake_beside_the_others(write):
    found = messages(read(write("extends: nobody\nname: 3\ndrafter: {use: none}\n")))
    assert len(found) == 2
    assert "x.yaml:1: extends: no strategy is called 'nobody'" in found[0]


@pytest.mark.parametrize("parent", ["nobody", "x", "3", "../gone.yaml", "[a]", "a" * 5000 + ".yaml"])
def test_keys_that_a_parent_would_have_brought_are_not_missed(write, parent):
    [found] = messages(read(write(f"extends: {parent}\n")))
    assert "extends: " in found
    assert "is required" not in found


# --- overrides ------------------------------------------------------------------------------------------------------


def test_an_override_is_read_as_yaml(write):
    spec = read(write(RIGHT), settings=["tree.nodes=24", "sampling.logit_bias={7: 2}", "name=other"]).spec
    assert spec.tree.options == {"width": 4, "nodes": 24}
    assert spec.sampling.logit_bias == {5: 1.0, 7: 2.0}
    assert spec.name == "other"


def test_an_override_of_use_drops_the_options_of_the_part_before_whatever_the_order(write):
    spec = read(write(RIGHT), settings=["tree.length=3", "tree.use=chain"]).spec
    assert (spec.tree.use, spec.tree.options) == ("chain", {"length": 3})


@pytest.mark.parametrize(
    "settings",
    [
        ["tree.length=3", "tree={use: chain}"],
        ["tree={use: chain}", "tree.length=3"],
        ["tree.length=3", "tree.use=chain"],
        ["tree={use: chain, length: 9}", "tree.length=3"],
        ["tree.length=3", "tree={use: chain, length: 9}"],
    ],
)
def test_a_key_of_a_part_outlives_the_whole_part_whatever_the_order(write, settings):
    assert read(write(RIGHT), settings=settings).spec.tree.options == {"length": 3}
    overrides = {"tree.length": 3, "tree": {"use": "chain"}}
    assert read(write(RIGHT), overrides=overrides).spec.tree.options == {"length": 3}


def test_of_two_values_for_one_key_the_later_holds(write):
    assert read(write(RIGHT), settings=["tree.width=3", "tree.width=5"]).spec.tree.options == {"width": 5}


def test_a_target_in_place_of_the_specs_keeps_the_options_that_are_set_beside_it(write):
    target = {"use": "huggingface", "model": "x"}
    spec = read(write(RIGHT), settings=["target.dtype=float32"], overrides={"target": target}).spec
    assert spec.target.options == {"model": "x", "dtype": "float32"}


@pytest.mark.parametrize("key", [".".join("a" * 2000), "a" * 5000, "sampling.logit_bias." + "1" * 5000])
def test_an_override_of_an_endless_key_is_one_short_mistake(write, key):
    [found] = messages(read(write(RIGHT), settings=[f"{key}=1"]))
    assert f"got a key of {len(key)} characters" in found
    assert len(found) < 400


def test_an_option_of_a_default_part_can_be_overridden(write):
    assert read(write(RIGHT), settings=["target.dtype=float32"]).spec.target.options == {"dtype": "float32"}


def test_a_mistake_of_an_override_names_the_override(write):
    reading = read(write(RIGHT), settings=["sampling.seed=1.5", "tree.nodes", "extends=plain", "name=[1"])
    found = messages(reading)
    assert any(m.startswith("--set sampling.seed=1.5: sampling.seed: got 1.5") for m in found)
    assert any(m.startswith("--set tree.nodes: expected KEY=VALUE") for m in found)
    assert any(m.startswith("--set extends=plain: extends: is read from the file alone") for m in found)
    assert any(m.startswith("--set name=[1: not YAML") for m in found)


def test_a_mapping_is_a_spec_too():
    reading = read_spec({"drafter": {"use": "none"}, "sampling": {"top_k": True}}, find_strategy=Path)
    assert [str(p) for p in reading.problems] == ["the given mapping: sampling.top_k: got true, expected a whole number"]


def test_a_python_override_replaces_a_key(write):
    spec = read(write(RIGHT), overrides={"tree": {"use": "chain"}, "sampling.temperature": 0.5}).spec
    assert (spec.tree.use, spec.sampling.temperature) == ("chain", 0.5)


def test_a_value_that_yaml_could_not_hold_is_a_mistake():
    reading = read_spec({"drafter": {"use": "none", "x": object()}}, find_strategy=Path)
    assert isinstance(reading.problems[0].message, str)
    endless: dict = {"use": "none"}
    endless["more"] = endless
    reading = read_spec({"drafter": endless}, find_strategy=Path)
    assert [str(p) for p in reading.problems] == ["the given mapping: is nested too deeply, or contains itself"]
    reading = read_spec({"drafter": {"use": "none"}, "source": "\ud800"}, find_strategy=Path)
    assert [str(p) for p in reading.problems] == ["the given mapping: holds a text that is no Unicode, or is nested too deeply"]
    reading = read_spec({"drafter": {"use": "none", "x": object()}}, find_strategy=Path)
    assert reading.spec is None
    assert issubclass(SpecError, SpecdecError)
