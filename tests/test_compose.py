"""Names become objects: what fits is built, what does not is refused with its lines and with what would fit."""

from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import pytest
import torch

import specdec
from specdec.compose import build
from specdec.config.catalog import load_catalog
from specdec.config.library import Catalog, library
from specdec.config.resolver import check, read
from specdec.errors import IncompatibleParts, PluginError, SpecdecError, SpecError, UnknownPart
from specdec.interfaces.declarations import BuilderDeclaration, Gives, Guarantee, Kind, Shape, TargetDeclaration
from specdec.interfaces.parts import PartOptions, TreeBuilder
from specdec.plugins.loading import load_registry
from specdec.plugins.registry import Registered
from specdec.trees.draft_tree import SINGLE_DRAWS, Draw
from specdec.verifiers.match import Match

TARGET = {"use": "tabular", "vocab": 3, "random": {"order": 1, "sharpness": 4.0}}
DRAFTER = {"use": "tabular", "vocab": 3, "random": {"seed": 7}}


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog()


def spec(**parts) -> dict:
    return {"target": TARGET, "drafter": DRAFTER, **parts}


def refusal(catalog: Catalog, tmp_path: Path, text: str) -> str:
    path = tmp_path / "x.yaml"
    path.write_text(dedent(text))
    with pytest.raises(SpecError) as raised:
        check(read(str(path), catalog), catalog)
    return str(raised.value).replace(f"{tmp_path}/", "")


def test_every_shipped_strategy_fits(catalog):
    for name in catalog.library.strategies():
        assert check(read(name, catalog), catalog).spec.name == name


def test_every_shipped_strategy_names_its_source_and_explains_itself(catalog):
    for name, path in catalog.library.strategies().items():
        text = path.read_text()
        assert text.startswith("#"), name
        assert "source:" in text or "extends:" in text, name
        assert check(read(name, catalog), catalog).spec.description, name


def test_an_impossible_pair_is_refused_with_lines_and_what_would_fit(catalog, tmp_path):
    text = refusal(
        catalog,
        tmp_path,
        """\
        drafter: {use: ngram}

        tree:
          use: dynamic
        verifier: {use: multi_round}
        """,
    )
    assert text.splitlines() == [
        "x.yaml: these parts do not fit together",
        "  lines 3, 5  tree 'dynamic' makes deterministic draws; verifier 'multi_round' needs iid or without-replacement draws",
        "  lines 1, 5  drafter 'ngram' gives candidates without q; verifier 'multi_round' reads q",
        "  verifiers that fit: match, point_mass",
        "  builders that fit: none",
        "  builders that fit with another drafter (model, eagle, eagle3): chain {draw: sampled}, sampled, delayed, chains",
    ]


def test_what_fits_is_found_among_the_options_too(catalog, tmp_path):
    text = refusal(catalog, tmp_path, "drafter: {use: model, model: target}\nverifier: {use: chain}\n")
    assert "builders that fit: chain {draw: sampled}" in text
    assert "tree 'chain' makes deterministic draws" in text


def test_shape_names_and_fit_are_reported_together(catalog, tmp_path):
    text = refusal(
        catalog,
        tmp_path,
        """\
        nmae: x
        drafter: {use: model, model: target, modle: 3}
        tree: {use: fixed, file: eagle-52}
        verifier: {use: mutli_round}
        target: {use: tabular, vocab: 2.5}
        """,
    )
    assert "x.yaml:1: nmae: unknown key; did you mean 'name'?" in text
    assert "x.yaml:2: drafter.modle: unknown key; did you mean 'model'?" in text
    assert "x.yaml:3: tree.file: no tree is called 'eagle-52'; did you mean 'eagle-25'?" in text
    assert "x.yaml:4: verifier.use: no verifier is called 'mutli_round'; did you mean 'multi_round'?" in text
    assert "x.yaml:5: target.vocab: got 2.5, expected a whole number" in text


def test_a_mistake_beside_an_impossible_pair_hides_neither(catalog, tmp_path):
    text = refusal(catalog, tmp_path, "drafter: {use: ngram}\ntree: {use: dynamic, nodse: 3}\nverifier: {use: chain}\n")
    assert "x.yaml:2: tree.nodse: unknown key; did you mean 'nodes'?" in text
    assert "x.yaml: these parts do not fit together" in text


def test_a_draft_model_in_a_spec_is_checked_like_a_target(catalog, tmp_path):
    text = refusal(catalog, tmp_path, "drafter:\n  use: model\n  model:\n    use: tabluar\n    vocab: 3\n")
    assert "x.yaml:4: drafter.model.use: no target is called 'tabluar'; did you mean 'tabular'?" in text


def test_a_model_folder_that_does_not_exist_is_reported_at_its_line(catalog, tmp_path):
    text = refusal(catalog, tmp_path, "target: {use: huggingface, model: /no/such/folder}\ndrafter: {use: none}\n")
    assert "x.yaml:1: target" in text
    assert "/no/such/folder" in text


def test_a_malformed_tree_file_is_reported_with_its_own_line(catalog, tmp_path):
    (tmp_path / "oak.yaml").write_text("name: oak\nsource: here\npaths: [[1]]\n")
    text = refusal(catalog, tmp_path, "drafter: {use: none}\ntree: {use: fixed, file: oak.yaml}\n")
    assert "x.yaml:2" in text
    assert "oak.yaml:3: paths.0: path [1]" in text


def test_a_draft_model_that_cannot_be_decoded_is_refused_at_its_line(catalog, tmp_path):
    text = refusal(catalog, tmp_path, "drafter:\n  use: model\n  model: {use: builtin, attention: flash_attention_2}\n")
    assert "x.yaml:3: drafter.model: cannot draft: no attention 'flash_attention_2'" in text


def test_a_model_out_of_reach_is_said_to_be_unchecked(catalog):
    assert check(read("own-model-ngram", catalog), catalog).notes == (
        "target: not checked: its configuration is out of reach until it is loaded",
        "'own-model-ngram' is a template for models of your own: set them in a copy, or by --target MODEL",
    )


def test_every_pair_of_builder_and_verifier_is_either_built_or_refused_as_the_contract_says(catalog):
    trees = [
        {"use": "chain"},
        {"use": "chain", "draw": "sampled"},
        {"use": "fixed", "widths": [2, 1]},
        {"use": "dynamic"},
        {"use": "sampled", "widths": [2], "replacement": True},
        {"use": "sampled", "widths": [2]},
    ]
    for tree in trees:
        for name, registered in catalog.registry.parts[Kind.VERIFIER].items():
            if name == "judge":  # needs a trained head: tests/verifiers/test_judge.py
                continue
            builder = catalog.registry.find(Kind.TREE, tree["use"])
            made = builder.declares(builder.Options(**{k: v for k, v in tree.items() if k != "use"}))
            rule = registered.cls.declares(registered.cls.Options())
            draws = {made.draw} | (SINGLE_DRAWS if tree.get("draw") == "sampled" else set())
            small = rule.most_drafts is None or made.shape is Shape.CHAIN
            expected = bool(draws & rule.accepts) and made.shape in rule.shapes and small
            reading = read(spec(tree=tree, verifier={"use": name}, allow_lossy=True), catalog)
            if expected:
                assert build(check(reading, catalog), catalog).builder.declaration == made
            else:
                with pytest.raises(IncompatibleParts):
                    check(reading, catalog)


def test_the_resolved_spec_reads_back_as_itself(catalog):
    for name in catalog.library.strategies():
        resolved = check(read(name, catalog), catalog).plain()
        assert check(read(resolved, catalog), catalog).plain() == resolved


def test_a_resolved_spec_calls_a_shipped_tree_by_its_name(catalog):
    assert check(read("self-fixed", catalog), catalog).plain()["tree"]["file"] == "eagle-25"


def test_load_builds_a_decoder_that_runs():
    decoder = specdec.load(spec(tree={"use": "chain", "length": 2}), sampling={"temperature": 1.0, "seed": 3})
    assert len(decoder.generate([[0, 1]], max_new_tokens=7)[0].tokens) == 7
    assert decoder.verifier.declaration.guarantee is Guarantee.LOSSLESS


def test_load_takes_a_target_as_a_mapping_or_as_an_object():
    first = specdec.load("plain", target=TARGET)
    second = specdec.load("ngram-tree", target=first.target)
    assert second.target is first.target
    one = [d.generate([[0, 1, 0, 1, 0]], max_new_tokens=20)[0].tokens for d in (first, second)]
    assert one[0] == one[1]


def test_load_takes_dotted_overrides_and_lists_of_texts():
    for settings in ({"tree.length": 2}, ["tree.length=2"]):
        assert specdec.load("plain", target=TARGET, set=settings).builder.declaration.max_depth == 2


def test_a_wrong_override_names_itself():
    with pytest.raises(SpecError, match="argument tree=3: tree: got 3"):
        specdec.load("plain", target=TARGET, tree=3)


def test_an_unknown_strategy_suggests_the_nearest():
    with pytest.raises(UnknownPart, match="did you mean 'ngram-tree'"):
        specdec.load("ngram-treee")


def test_a_text_target_is_a_folder_or_a_registered_name():
    with pytest.raises(SpecError, match="no folder '/no/such"):
        specdec.load("plain", target="/no/such/folder")
    with pytest.raises(SpecError, match=r"target\.vocab: is required"):
        specdec.load("plain", target="tabular")


def test_a_draft_model_of_its_own_is_loaded_beside_the_target(catalog):
    drafter = {"use": "model", "model": {**TARGET, "random": {"seed": 9}}}
    decoder = specdec.load(spec(drafter=drafter, tree={"use": "dynamic", "width": 2, "depth": 2, "nodes": 4}))
    plain = specdec.load("plain", target=decoder.target)
    answers = [d.generate([[0, 1]], max_new_tokens=12)[0].tokens for d in (decoder, plain)]
    assert answers[0] == answers[1]


# --- parts that break their contract --------------------------------------------------------------------------------


def broken_shop(**methods) -> Catalog:
    """A workshop with a tree builder 'broken', some of whose methods are replaced."""

    class Broken(TreeBuilder):
        name = "broken"
        Options = PartOptions

        @classmethod
        def declares(cls, options):
            return BuilderDeclaration(Draw.DETERMINISTIC, Shape.CHAIN, frozenset(Gives))

        @classmethod
        def build(cls, options, tools):
            return cls()

        def grow(self, root_token, root_position, budget, rng):
            raise NotImplementedError

    for name, method in methods.items():
        setattr(Broken, name, classmethod(method))
    registry = load_registry("1")
    trees = {**registry.parts[Kind.TREE], "broken": Registered(Broken, "some-package")}
    return Catalog(replace(registry, parts={**registry.parts, Kind.TREE: trees}), library())


def failing(*arguments):
    raise ZeroDivisionError("oops")


def leaving(*arguments):
    raise SystemExit(3)


BREAKS = {
    "declares nothing": ({"declares": lambda cls, options: None}, "declares NoneType, expected BuilderDeclaration"),
    "declares another": ({"declares": lambda cls, options: TargetDeclaration()}, "declares TargetDeclaration, expected"),
    "declares by half": (
        {"declares": lambda cls, options: BuilderDeclaration(Draw.IID, Shape.CHAIN, None)},
        "declares needs=None, expected a set of Gives",
    ),
    "declares another draw": (
        {"declares": lambda cls, options: BuilderDeclaration("any", Shape.CHAIN, frozenset(Gives))},
        "declares draw='any', expected a Draw",
    ),
    "fails to declare": ({"declares": failing}, "fails: ZeroDivisionError: oops"),
    "builds nothing": ({"build": lambda cls, options, tools: None}, "was built as NoneType, not as a TreeBuilder"),
    "builds another": ({"build": lambda cls, options, tools: 3}, "was built as int, not as a TreeBuilder"),
    "fails to build": ({"build": failing}, "fails: ZeroDivisionError: oops"),
    "leaves": ({"build": leaving}, "fails: SystemExit: 3"),
}


@pytest.mark.parametrize(("methods", "message"), BREAKS.values(), ids=BREAKS.keys())
def test_a_part_that_breaks_its_contract_does_not_pass_the_check(methods, message):
    catalog = broken_shop(**methods)
    with pytest.raises(PluginError, match=f"tree 'broken' .*{message}"):
        check(read(spec(tree={"use": "broken"}), catalog), catalog)


def test_a_part_that_keeps_its_contract_passes_the_check():
    catalog = broken_shop()
    assert check(read(spec(tree={"use": "broken"}), catalog), catalog).parts[Kind.TREE].name == "broken"


@pytest.mark.parametrize("target", ["x" * 5000, "~nobody/model"])
def test_a_target_that_could_be_no_folder_is_a_fault_and_no_crash(target):
    with pytest.raises(SpecdecError):
        specdec.load("plain", target=target)


@pytest.mark.parametrize("given", [torch.nn.Linear(1, 1), 3, ["builtin"], object(), b"builtin"])
def test_what_is_no_target_is_refused_with_what_would_be_one(given):
    with pytest.raises(SpecError, match=rf"target: got a {type(given).__name__} object; expected a folder.*save_pretrained"):
        specdec.load("plain", target=given)


@pytest.mark.parametrize("given", [torch.nn.Linear(1, 1), 3, None, ["plain"]])
def test_what_is_no_spec_is_refused_with_what_would_be_one(given):
    with pytest.raises(SpecError, match=rf"got a {type(given).__name__} object as a spec; expected a strategy's name"):
        specdec.load(given)


@pytest.mark.parametrize("given", [3, None, {1: 2}, ["tree.nodes=3", 3], object()])
def test_settings_that_are_none_say_what_would_be(given):
    with pytest.raises(SpecError, match=r"set: got .*; expected \{'tree\.nodes': 24\}, or a list of texts"):
        specdec.check("ngram-tree", set=given)


def test_one_setting_may_stand_without_a_list():
    assert specdec.check("ngram-tree", set="tree.nodes=3").spec == specdec.check("ngram-tree", set=["tree.nodes=3"]).spec


@pytest.mark.parametrize("given", [3, None, Match])
def test_parts_that_are_no_list_say_what_would_be(given):
    with pytest.raises(PluginError, match=r"parts: got .*; expected a list of part classes, such as \[MyVerifier\]"):
        specdec.check("ngram-tree", parts=given)
