"""Reading strategy files: every mistake at once, with its line; nothing coerced; `extends` and overrides."""

from pathlib import Path
from textwrap import dedent

import pytest

from specdec.errors import SpecdecError, SpecError, UnknownPart
from specdec.spec import Reading, read_spec

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
        tree: chain
        sampling:
          temperature: warm
          top_k: 1.5
        allow_lossy: "no"
        """
    )
    assert messages(read(path)) == [
        "x.yaml:3: drafter.use: got 3, expected text",
        'x.yaml:4: tree: got "chain", expected a mapping such as {use: NAME}',
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
    assert "expected a mapping" in messages(read(write("- 1\n- 2\n")))[0]


def test_an_empty_file_lacks_a_drafter(write):
    assert messages(read(write(""))) == ["x.yaml:1: drafter: is required"]


def test_a_file_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(SpecError, match=r"gone\.yaml: cannot be read"):
        read(tmp_path / "gone.yaml")


def test_a_value_that_contains_itself_is_a_mistake_and_not_a_loop(write):
    assert "contains itself" in messages(read(write("drafter: &a {use: none, more: *a}")))[0]


def test_a_language_tag_is_refused(write):
    assert "is not understood" in messages(read(write("drafter: {use: none}\nname: !!python/name:os.system x\n")))[0]


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


# --- overrides ------------------------------------------------------------------------------------------------------


def test_an_override_is_read_as_yaml(write):
    spec = read(write(RIGHT), settings=["tree.nodes=24", "sampling.logit_bias={7: 2}", "name=other"]).spec
    assert spec.tree.options == {"width": 4, "nodes": 24}
    assert spec.sampling.logit_bias == {5: 1.0, 7: 2.0}
    assert spec.name == "other"


def test_an_override_of_use_drops_the_options_of_the_part_before_whatever_the_order(write):
    spec = read(write(RIGHT), settings=["tree.length=3", "tree.use=chain"]).spec
    assert (spec.tree.use, spec.tree.options) == ("chain", {"length": 3})


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
    assert reading.spec is None
    assert issubclass(SpecError, SpecdecError)
