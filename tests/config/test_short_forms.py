"""Parts by name or path alone, files that are no strategy, keys in the wrong place, and where paths start."""

import json
from pathlib import Path

import pytest

from specdec.config.catalog import load_catalog
from specdec.config.resolver import check, read
from specdec.errors import SpecError
from specdec.interfaces.declarations import Kind


@pytest.fixture(scope="module")
def catalog():
    return load_catalog()


@pytest.fixture
def resolve(catalog, tmp_path):
    """The resolved spec of a text, written to `name`; options as for `read`."""

    def resolve(text: str, name: str = "x.yaml", **options):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return check(read(str(path), catalog, **options), catalog)

    return resolve


def model(folder: Path, vocab: int = 64) -> Path:
    """A folder with the config of a model, and no weights."""
    folder.mkdir(parents=True)
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": vocab, **sizes}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_part_may_be_given_by_its_name_alone(resolve):
    parts = resolve("target: builtin\ndrafter: ngram\ntree: chain\nverifier: point_mass\n").parts
    assert {kind: part.name for kind, part in parts.items()} == {
        Kind.TARGET: "builtin",
        Kind.DRAFTER: "ngram",
        Kind.TREE: "chain",
        Kind.VERIFIER: "point_mass",
    }


def test_a_target_that_is_no_registered_name_is_a_model(resolve, tmp_path):
    model(tmp_path / "models/llama")
    target = resolve("target: ../models/llama\ndrafter: ngram\n", "specs/x.yaml").parts[Kind.TARGET]
    assert (target.name, target.declares.vocab_size) == ("huggingface", 64)
    assert resolve("target: organisation/name\ndrafter: ngram\n").parts[Kind.TARGET].options.model == "organisation/name"


def test_short_forms_serve_overrides_and_parts_of_parts_too(resolve, tmp_path):
    found = resolve("drafter: ngram\ntree: {use: chain, length: 3}\n", settings=["tree=dynamic", "tree.width=2"])
    assert (found.parts[Kind.TREE].name, found.parts[Kind.TREE].options.width) == ("dynamic", 2)
    assert resolve("drafter: ngram\n", overrides={"verifier": "point_mass"}).parts[Kind.VERIFIER].name == "point_mass"
    mixed = resolve("drafter: {use: mixture, parts: [recycling, suffix]}\ntree: {use: dynamic}\n")
    assert [part.name for part in mixed.drafters] == ["recycling", "suffix"]
    assert resolve("drafter: {use: model, model: builtin}\n").nested["model"].name == "builtin"


def test_a_short_form_keeps_the_options_that_the_same_part_has_below(resolve, tmp_path):
    (tmp_path / "base.yaml").write_text("drafter: ngram\ntree: {use: dynamic, width: 3}\n")
    assert resolve("extends: base.yaml\ntree: dynamic\n").parts[Kind.TREE].options.width == 3


def test_a_wrong_short_form_suggests_the_right_name(resolve):
    with pytest.raises(SpecError, match=r"x\.yaml:1: drafter\.use: no drafter is called 'ngarm'; did you mean 'ngram'\?"):
        resolve("drafter: ngarm\n")


def test_what_is_required_says_what_would_fit(resolve):
    with pytest.raises(
        SpecError, match=r"drafter: is required, such as 'drafter: ngram'; registered drafters: block, eagle, eagle3"
    ):
        resolve("")
    with pytest.raises(SpecError, match=r"target\.model: is required: a folder with a config\.json, or a hub id"):
        resolve("drafter: ngram\ntarget: {use: huggingface}\n")
    with pytest.raises(SpecError, match=r"drafter\.use: is required: the part's name"):
        resolve("drafter: {max_ngram: 3}\n")


@pytest.mark.parametrize(
    "key", ["temperature: 1", "top_k: 5", "top_p: 0.9", "min_p: 0.1", "seed: 3", "draft: {temperature: 1}"]
)
def test_sampling_options_at_the_top_are_said_to_belong_under_sampling(resolve, key):
    name, _, value = key.partition(": ")
    with pytest.raises(
        SpecError, match=rf"x\.yaml:2: {name}: unknown key; it belongs under sampling, as in sampling: {{{name}"
    ):
        resolve(f"drafter: ngram\n{key}\n")
    with pytest.raises(SpecError, match=rf"--set {name}=.*: {name}: unknown key; it belongs under sampling"):
        resolve("drafter: ngram\n", settings=[f"{name}={value}"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name: x\ntarget: {use: builtin}\ndata: {}\nfeatures: f\noutput: o\n", "a training spec: `specdec train` takes it"),
        ("name: x\nsource: y\npaths: [[0]]\n", "a tree file: a strategy names it, as in tree: {use: fixed, file: FILE}"),
        ("kind: costs\nsource: y\n", "a file of measurements"),
    ],
)
def test_a_file_that_is_no_strategy_is_refused_in_one_line_that_says_what_it_is(resolve, text, words):
    with pytest.raises(SpecError) as raised:
        resolve(text)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_tree_of_another_project_points_to_tree_convert(resolve):
    for name in ("medusa.json", "trees/choices.py"):
        with pytest.raises(SpecError, match="`specdec tree convert` makes one"):
            resolve(f"drafter: ngram\ntree: {{use: fixed, file: {name}}}\n")


def test_a_path_starts_at_the_folder_of_the_file_that_it_is_written_in(resolve, tmp_path, monkeypatch):
    for place, vocab in (("base", 10), ("child", 20), ("here", 30)):
        model(tmp_path / place / "m", vocab)
    (tmp_path / "base/base.yaml").write_text("target: m\ndrafter: ngram\n")
    monkeypatch.chdir(tmp_path / "here")

    def vocabulary(text: str, **options) -> int:
        return resolve(text, "child/x.yaml", **options).parts[Kind.TARGET].declares.vocab_size

    assert vocabulary("target: m\ndrafter: ngram\n") == 20
    assert vocabulary("extends: ../base/base.yaml\n") == 10
    assert vocabulary("drafter: ngram\n", settings=["target={use: huggingface, model: m}"]) == 30
    assert resolve("drafter: {use: model, model: m}\n", "child/x.yaml").nested["model"].declares.vocab_size == 20
    part = "drafter: {use: model, model: {use: huggingface, model: m}}\n"
    assert resolve(part, "child/x.yaml").nested["model"].declares.vocab_size == 20


def test_a_path_from_the_working_folder_works_as_before_where_the_files_folder_has_none(resolve, tmp_path, monkeypatch):
    model(tmp_path / "here/only", 30)
    monkeypatch.chdir(tmp_path / "here")
    assert resolve("target: only\ndrafter: ngram\n", "child/x.yaml").parts[Kind.TARGET].declares.vocab_size == 30


def test_a_head_and_a_tree_start_at_the_files_folder_too(resolve, tmp_path):
    (tmp_path / "specs").mkdir()
    shipped = Path(__file__).parents[2] / "specdec/heads/shipped/eagle"
    (tmp_path / "specs/head").symlink_to(shipped)
    (tmp_path / "specs/oak.yaml").write_text("name: oak\nsource: here\nchain: 2\n")
    found = resolve("drafter: {use: eagle, head: head}\ntree: {use: fixed, file: oak.yaml}\n", "specs/x.yaml")
    assert found.parts[Kind.DRAFTER].options.head == str(tmp_path / "specs/head")
    assert found.parts[Kind.TREE].options.file == str(tmp_path / "specs/oak.yaml")


def test_a_draft_model_with_a_vocabulary_of_another_size_is_noted(resolve, tmp_path):
    model(tmp_path / "small", 1000)
    [note] = resolve("target: builtin\ndrafter: {use: model, model: small}\n").notes
    assert note.startswith("drafter.model: a vocabulary of 1000 tokens, where the target has 49152")


def test_a_template_says_that_it_is_one_and_how_its_models_are_set(catalog):
    note = check(read("own-model-eagle", catalog), catalog).notes[-1]
    assert note == (
        "'own-model-eagle' is a template for models of your own: set them in a copy, "
        "or by --target MODEL --set drafter.head=HEAD"
    )
