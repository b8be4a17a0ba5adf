"""Certificates: strict in what they read, of one resolved spec, and refused where what is loaded is something else."""

import importlib
import json
from dataclasses import replace

import pytest

import specdec
from specdec.compose import build
from specdec.config import certification
from specdec.config.catalog import load_catalog
from specdec.config.certificate import Certificate
from specdec.config.certification import model_files, required_certificate, stored_at
from specdec.config.resolver import check, read
from specdec.errors import SpecError
from specdec.interfaces.results import CertificateStamp
from specdec.losslessness.certify import certify
from specdec.losslessness.levels import Level, LevelResult, Outcome
from specdec.losslessness.price.measured import Price
from specdec.losslessness.rules.comparison import Mean

LOSSY = {
    "name": "lenient",
    "target": {"use": "tabular", "vocab": 6, "random": {"order": 1}},
    "drafter": {"use": "tabular", "vocab": 6, "random": {"seed": 7}},
    "tree": {"use": "chain", "length": 2, "draw": "sampled"},
    "verifier": {"use": "lenience", "lenience": 0.75},
    "sampling": {"temperature": 1.0},
    "allow_lossy": True,
    "max_tv": 0.05,
}
LOSSLESS = {**LOSSY, "verifier": {"use": "chain"}}
OWN_TREE = "name: own\nsource: mine\npaths:\n  - [0]\n"
PRICE = Price(tv=Mean(0.02, 0.01), tau=Mean(1.5, 0.1), tokens=400.0, steps=200, prompts=16)
PROVED = LevelResult(Level.EXACT, Outcome.PROVED, "L3 distribution-exact", (("enumerated", "everything"),))
MEASURED = LevelResult(Level.EXACT, Outcome.MEASURED, "lossy (L0), as it declares")


@pytest.fixture(scope="module")
def catalog():
    return load_catalog()


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path / "cache"))
    return tmp_path


def resolve(catalog, spec=LOSSY, **changes):
    return check(read({**spec, **changes}, catalog), catalog)


def certificate(catalog, spec=LOSSY, price=PRICE, results=(MEASURED,), **changes):
    resolved = resolve(catalog, {**spec, "max_tv": None}, **changes)
    target = build(resolved, catalog).target
    return certify(resolved, target, results, price=price, known_cases={"A, one draw": 1 / 15}, seed=0)


def proved(catalog, **changes):
    return certificate(catalog, LOSSLESS, None, (PROVED,), **changes)


def edited(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_certificate_is_read_as_it_was_written(catalog, tmp_path):
    made = certificate(catalog)
    made.write(tmp_path / "c.json")
    assert Certificate.read(tmp_path / "c.json") == made
    assert made.tv_at_most == pytest.approx(0.03)
    assert made.verdict == "lossy: total variation at most 0.03 a token (95%)"
    assert made.versions["torch"]
    assert made.numerics.dtype == "float64"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tv_at_most": 0.0}, "was changed after it was written"),
        ({"date": "2000-01-01"}, "was changed after it was written"),
        ({"spec_sha256": "0" * 64}, "was changed after it was written"),
        ({"tv_at_most": 2.0}, "is damaged: tv_at_most"),
        ({"tv_at_most": "0"}, "is damaged: tv_at_most"),
        ({"more": 1}, "is damaged: more"),
        ({"format": 2}, "is damaged: format"),
        ({"kind": "cost model"}, "is no certificate: kind is 'cost model'"),
    ],
    ids=str,
)
def test_an_edited_certificate_is_refused_by_what_is_wrong_with_it(catalog, tmp_path, changes, words):
    path = tmp_path / "c.json"
    certificate(catalog).write(path)
    edited(path, **changes)
    with pytest.raises(SpecError, match=words):
        Certificate.read(path)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"kind": "specdec certificate"}', "[" * 5000])
def test_a_file_that_is_no_certificate_is_refused_in_words(tmp_path, text):
    (tmp_path / "c.json").write_text(text)
    with pytest.raises(SpecError, match=r"c\.json' is"):
        Certificate.read(tmp_path / "c.json")
    with pytest.raises(SpecError, match="cannot be read"):
        Certificate.read(tmp_path / "missing.json")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"verifier": {"use": "lenience", "lenience": 0.5}}, "verifier.lenience: 0.5, certified was 0.75"),
        ({"tree": {"use": "chain", "length": 3, "draw": "sampled"}}, "tree.length: 3, certified was 2"),
        ({"sampling": {"temperature": 0.5}}, "sampling.temperature: 0.5, certified was 1.0"),
        ({"target": {"use": "tabular", "vocab": 6, "random": {"order": 2}}}, "target.random.order: 2, certified was 1"),
    ],
)
def test_a_certificate_names_the_keys_in_which_a_spec_is_another(catalog, changes, words):
    made, other = certificate(catalog), resolve(catalog, **changes)
    assert not made.matches(other)
    assert words in made.differences(other)


@pytest.mark.parametrize(
    "changes", [{"name": "other"}, {"max_tv": 0.5}, {"max_tv": None}, {"sampling": {"temperature": 1.0, "seed": 9}}], ids=str
)
def test_name_limit_and_seed_are_not_part_of_what_is_certified(catalog, changes):
    made = certificate(catalog)
    assert made.matches(resolve(catalog, **changes))
    assert made.spec_sha256 == certificate(catalog, **{k: v for k, v in changes.items() if k != "max_tv"}).spec_sha256


def test_a_lossless_certificate_holds_at_any_sampling_and_is_what_a_consumer_may_require(catalog):
    made = proved(catalog)
    assert made.matches(resolve(catalog, LOSSLESS, sampling={"temperature": 0.3, "top_p": 0.5}))
    assert made.tv_at_most == 1e-12
    made.require_lossless()
    with pytest.raises(SpecError, match="not proved at level runtime"):
        made.require_lossless("exact", "runtime")
    with pytest.raises(SpecError, match=r"'lenient': lossy: total variation at most 0\.03"):
        certificate(catalog).require_lossless()


@pytest.mark.parametrize("outcome", [Outcome.REFUTED, Outcome.INCONCLUSIVE])
def test_what_was_not_proved_bounds_nothing(catalog, outcome):
    made = certificate(catalog, LOSSLESS, None, (replace(PROVED, outcome=outcome),))
    assert made.tv_at_most == 1.0
    with pytest.raises(SpecError, match="nothing is proved"):
        made.require_lossless()


def test_a_spec_with_a_limit_is_loaded_only_with_a_certificate_below_it(catalog, tmp_path):
    with pytest.raises(SpecError, match=r"max_tv 0\.05 needs a certificate.*`specdec verify the given mapping`"):
        specdec.load(LOSSY)
    made, resolved = certificate(catalog), resolve(catalog)
    made.write(stored_at(resolved))
    decoder = specdec.load(LOSSY)
    assert decoder.certificate == made.stamp == CertificateStamp(made.sha256, made.verdict, False, made.tv_at_most)
    with pytest.raises(SpecError, match=r"max_tv is 0\.01, and .* may be up to 0\.03"):
        specdec.load(LOSSY, max_tv=0.01)
    with pytest.raises(SpecError, match="needs a certificate"):
        specdec.load(LOSSY, sampling={"temperature": 0.5})
    made.write(tmp_path / "c.json")
    with pytest.raises(SpecError, match=r"is of another spec: sampling.temperature: 0\.5, certified was 1\.0"):
        specdec.load(LOSSY, sampling={"temperature": 0.5}, certificate=tmp_path / "c.json")


def test_answers_carry_the_certificate_and_those_that_it_does_not_cover_are_refused(catalog, tmp_path):
    made = certificate(catalog)
    made.write(tmp_path / "c.json")
    decoder = specdec.load({**LOSSY, "max_tv": None}, certificate=tmp_path / "c.json")
    [answer] = decoder.generate([[1, 2]], max_new_tokens=3, seed=5)
    assert answer.certificate == made.stamp
    for options in ({"temperature": 0.5}, {"sampling": {"top_k": 2}}, {"processors": [lambda ids, scores: scores]}):
        with pytest.raises(SpecError, match="covers its own sampling only"):
            decoder.generate([[1, 2]], max_new_tokens=3, **options)
    [unmarked] = decoder.replace(name="other").generate([[1, 2]], max_new_tokens=3)
    assert unmarked.certificate is None
    assert specdec.load({**LOSSY, "max_tv": None}).generate([[1, 2]], max_new_tokens=2)[0].certificate is None


def test_answers_of_a_lossless_decoder_carry_its_certificate_at_any_sampling(catalog, tmp_path):
    proved(catalog).write(tmp_path / "c.json")
    decoder = specdec.load(LOSSLESS, certificate=tmp_path / "c.json")
    [answer] = decoder.generate([[1, 2]], max_new_tokens=3, temperature=0.5)
    assert answer.certificate.lossless


def test_a_tree_file_with_other_contents_and_another_version_are_refused(catalog, tmp_path, monkeypatch):
    tree = tmp_path / "own.yaml"
    tree.write_text(OWN_TREE + "  - [0, 0]\n")
    spec = {"tree": {"use": "sampled", "file": str(tree)}, "verifier": {"use": "multi_round"}}
    made = proved(catalog, **spec)
    assert list(made.files) == ["tree.file"]
    assert made.spec["tree"]["file"] == "own.yaml"
    made.write(tmp_path / "c.json")
    specdec.load({**LOSSLESS, **spec}, certificate=tmp_path / "c.json")
    tree.write_text(OWN_TREE + "  - [1]\n")
    with pytest.raises(SpecError, match=r"is not what was loaded: tree\.file: own\.yaml has other contents"):
        specdec.load({**LOSSLESS, **spec}, certificate=tmp_path / "c.json")
    monkeypatch.setattr(certification, "installed", lambda: {"specdec": "9.9"})
    with pytest.raises(SpecError, match=r"was made by specdec .*, not 9\.9"):
        required_certificate(resolve(catalog, LOSSLESS, **spec), tmp_path / "c.json")


def test_weights_that_were_trained_further_in_place_are_other_files(catalog, tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 32, "num_hidden_layers": 1}
    (model / "config.json").write_text(json.dumps(config))
    (model / "model.safetensors").write_bytes(b"before")
    resolved = resolve(catalog, {"target": str(model), "drafter": "ngram"})
    before = model_files(resolved)
    assert set(before["target.model"]) == {"config.json", "model.safetensors"}
    (model / "model.safetensors").write_bytes(b"after!")
    after = model_files(resolved)
    assert {name for name in before["target.model"] if before["target.model"][name] != after["target.model"][name]} == {
        "model.safetensors"
    }


def test_with_a_target_that_is_already_loaded_the_target_itself_is_compared(catalog, tmp_path):
    spec = {**LOSSLESS, "drafter": {"use": "ngram"}, "tree": {"use": "chain"}, "verifier": {"use": "match"}}
    given = {key: value for key, value in spec.items() if key != "target"}
    certificate(catalog, spec, None, (PROVED,)).write(tmp_path / "c.json")
    same, other = (
        build(resolve(catalog, spec, target={**LOSSY["target"], "vocab": size}, max_tv=None), catalog).target for size in (6, 7)
    )
    assert specdec.load(given, target=same, certificate=tmp_path / "c.json").certificate is not None
    with pytest.raises(SpecError, match="give certificate=FILE"):
        specdec.load(given, target=same)
    with pytest.raises(SpecError, match="the target's vocab_size is 7, certified was 6"):
        specdec.load(given, target=other, certificate=tmp_path / "c.json")


OWN_RULE = """
from specdec.authoring import BuildTools, PartOptions, Verifier, VerifierDeclaration
from specdec.verifiers.chain import Chain

class OwnRule(Verifier):
    name = "own_rule"
    Options = PartOptions

    @classmethod
    def declares(cls, options):
        return Chain.declares(options)

    @classmethod
    def build(cls, options, tools):
        return cls()

    def verify(self, tree, target_probs, rng):
        return Chain().verify(tree, target_probs, rng)
"""


def test_a_rule_of_another_package_is_certified_with_its_code(tmp_path, monkeypatch):
    (tmp_path / "own_rule_module.py").write_text(OWN_RULE)
    monkeypatch.syspath_prepend(tmp_path)
    catalog = load_catalog(parts=[importlib.import_module("own_rule_module").OwnRule])
    path = tmp_path / "own.json"
    certificate(catalog, {**LOSSLESS, "verifier": "own_rule"}, price=None, results=(PROVED,)).write(path)
    resolved = resolve(catalog, {**LOSSLESS, "verifier": "own_rule", "max_tv": None})
    assert build(resolved, catalog, certificate=path).certificate is not None
    (tmp_path / "own_rule_module.py").write_text(OWN_RULE.replace("Chain().verify", "Chain() .verify"))
    with pytest.raises(SpecError, match=r"verifier\.code: own_rule_module\.py has other contents"):
        build(resolved, catalog, certificate=path)
