"""Code that a model brings is run for who consents to it, and never by reading a spec or a config."""

import json
import sys

import pytest
import torch
import typer
import yaml
from typer.testing import CliRunner

import specdec
from specdec import compose
from specdec.cli import app
from specdec.errors import CheckpointError, SpecError, TargetMismatch
from specdec.targets.loading import load_model, load_tokenizer
from specdec.training.reading import read_training_spec

CODE = """
from pathlib import Path
Path({marker!r}).write_text("ran")
from transformers import LlamaConfig, LlamaForCausalLM

class OwnConfig(LlamaConfig):
    model_type = "own-llama"

class OwnModel(LlamaForCausalLM):
    config_class = OwnConfig
"""
CONSENT = r"--trust-remote-code, SPECDEC_TRUST_REMOTE_CODE=1 or specdec.load\(..., trust_remote_code=True\)"


@pytest.fixture
def marker(tmp_path, monkeypatch):
    """A file that exists once the model's code was run. What was imported before is forgotten."""
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.delenv("SPECDEC_TRUST_REMOTE_CODE", raising=False)
    yield tmp_path / "ran"
    for name in [name for name in sys.modules if name.startswith("transformers_modules")]:
        del sys.modules[name]


@pytest.fixture
def model(make_model, tmp_path, marker):
    """A model of a type that only its own code knows."""
    folder = tmp_path / "own"
    make_model("llama", dtype=torch.float32).save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    brings = {"AutoConfig": "modeling_own.OwnConfig", "AutoModelForCausalLM": "modeling_own.OwnModel"}
    config |= {"auto_map": brings, "model_type": "own-llama", "architectures": ["OwnModel"]}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "modeling_own.py").write_text(CODE.format(marker=str(marker)))
    return folder


def target(model, **options):
    return {"use": "huggingface", "model": str(model), "device": "cpu", "trust_remote_code": True, **options}


def write(path, spec):
    path.write_text(yaml.safe_dump(spec))
    return path


def spec_with(where, model, folder):
    """A spec that says `trust_remote_code: true` for the model, in each place where it can."""
    if where == "target":
        return write(folder / "s.yaml", {"drafter": {"use": "ngram"}, "target": target(model)})
    if where == "extends":
        write(folder / "base.yaml", {"drafter": {"use": "ngram"}, "target": target(model)})
        return write(folder / "s.yaml", {"extends": "base.yaml"})
    if where == "draft":
        return write(folder / "s.yaml", {"drafter": {"use": "model", "model": target(model)}})
    parts = [{"use": "ngram"}, {"use": "model", "model": target(model)}]
    return write(folder / "s.yaml", {"drafter": {"use": "mixture", "parts": parts}, "tree": {"use": "dynamic"}})


@pytest.mark.parametrize("where", ["target", "extends", "draft", "mixture"])
def test_a_spec_alone_never_has_a_models_code_run(where, model, marker, tmp_path):
    spec = spec_with(where, model, tmp_path)
    for act in (lambda: compose.resolve(spec, compose.load_catalog()), lambda: specdec.load(spec)):
        with pytest.raises(SpecError, match=rf"needs code of its own \(modeling_own\.py\).*{CONSENT}"):
            act()
    assert not marker.exists()


@pytest.mark.parametrize("where", ["target", "extends", "draft", "mixture"])
def test_checking_runs_no_code_even_with_consent(where, model, marker, tmp_path):
    plan = compose.resolve(spec_with(where, model, tmp_path), compose.load_catalog(trust_remote_code=True))
    part = next(iter(plan.nested.values()), None) or next(p for p in plan.parts.values() if p.kind == "target")
    assert (part.declares.vocab_size, part.declares.num_layers, part.declares.max_positions) == (96, 2, 256)
    assert not marker.exists()


def test_checking_in_python_takes_consent_and_runs_nothing(model, marker, tmp_path):
    spec = spec_with("target", model, tmp_path)
    with pytest.raises(SpecError, match="needs code of its own"):
        compose.check(spec)
    assert compose.check(spec, trust_remote_code=True).parts["target"].name == "huggingface"
    assert not marker.exists()


def test_the_callers_consent_runs_the_code(model, marker, tmp_path):
    decoder = specdec.load(spec_with("target", model, tmp_path), trust_remote_code=True)
    assert marker.read_text() == "ran"
    assert len(decoder.generate([[1, 2, 3]], max_new_tokens=4)[0].tokens) == 4


def test_the_environments_consent_runs_the_code_unless_the_caller_refuses(model, marker, tmp_path, monkeypatch):
    monkeypatch.setenv("SPECDEC_TRUST_REMOTE_CODE", "1")
    spec = spec_with("target", model, tmp_path)
    with pytest.raises(SpecError, match="needs code of its own"):
        specdec.load(spec, trust_remote_code=False)
    assert not marker.exists()
    specdec.load(spec)
    assert marker.exists()


def test_consent_needs_no_word_in_the_spec(model, marker, tmp_path):
    spec = write(tmp_path / "s.yaml", {"drafter": {"use": "ngram"}, "target": target(model, trust_remote_code=False)})
    specdec.load(spec, trust_remote_code=True)
    assert marker.exists()


def test_a_model_that_transformers_knows_runs_without_the_code_that_it_brings(model, marker, tmp_path):
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "model_type": "llama"}))
    specdec.load(spec_with("target", model, tmp_path))
    assert not marker.exists()


def test_a_tokenizers_code_needs_consent_too(make_model, marker, tmp_path):
    folder = tmp_path / "m"
    make_model("llama").save_pretrained(folder)
    brings = {"AutoTokenizer": ["tokenization_own.Own", None]}
    (folder / "tokenizer_config.json").write_text(json.dumps({"auto_map": brings, "tokenizer_class": "Own"}))
    (folder / "tokenization_own.py").write_text(CODE.format(marker=str(marker)) + "\nclass Own: pass\n")
    with pytest.raises(CheckpointError, match=CONSENT):
        load_tokenizer(str(folder), revision=None, trust_remote_code=False)
    assert not marker.exists()


def test_loading_without_consent_names_the_ways_to_give_it(model, marker):
    with pytest.raises(TargetMismatch, match=CONSENT):
        load_model(str(model), dtype=None, device="cpu", attention="sdpa")
    assert not marker.exists()


@pytest.mark.parametrize("key", ["num_hidden_layers", "n_layer", "layers"])
def test_a_config_of_a_billion_layers_is_refused_before_anything_is_made_of_it(make_model, tmp_path, key):
    make_model("gemma3").save_pretrained(tmp_path / "m")
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    del config["layer_types"]
    (tmp_path / "m" / "config.json").write_text(json.dumps({**config, key: 1_000_000_000}))
    with pytest.raises(SpecError, match=f"{key}: 1000000000, expected at most 10000"):
        compose.resolve({"drafter": {"use": "ngram"}, "target": target(tmp_path / "m")}, compose.load_catalog())


@pytest.mark.parametrize("text", ["[" * 100_000, "9" * 5000, '{"a": ' + "9" * 5000 + "}", " " * 17_000_000])
def test_a_config_that_no_reader_takes_is_named(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(SpecError, match=r"the config\.json of .* (is no JSON|has more than 16,000,000 bytes)"):
        compose.resolve({"drafter": {"use": "ngram"}, "target": target(tmp_path)}, compose.load_catalog())


def commands(group, path=()):
    for name, command in getattr(group, "commands", {}).items():
        yield (*path, name), command
        yield from commands(command, (*path, name))


def test_every_command_that_loads_a_model_takes_consent():
    found = dict(commands(typer.main.get_command(app)))
    flags = {path: {flag for option in command.params for flag in option.opts} for path, command in found.items()}
    loading = {path for path, known in flags.items() if "--target" in known} | {("train",)}
    assert len(loading) > 8
    assert {path for path, known in flags.items() if "--trust-remote-code" in known} == loading


def test_the_command_lines_consent_is_given_by_its_option(model, marker, tmp_path):
    spec = str(spec_with("target", model, tmp_path))
    refused = CliRunner().invoke(app, ["check", spec])
    assert (refused.exit_code, "needs code of its own" in refused.output) == (2, True)
    assert CliRunner().invoke(app, ["check", spec, "--trust-remote-code"]).exit_code == 0
    assert CliRunner().invoke(app, ["show", spec, "--trust-remote-code"]).exit_code == 0
    assert not marker.exists()


def test_a_training_spec_cannot_consent(tmp_path, marker, model):
    spec = tmp_path / "train.yaml"
    spec.write_text(yaml.safe_dump({"name": "n", "target": target(model)}))
    settings = (
        "name=n",
        "budget={steps: 1}",
        "data={sources: {a: {path: a.jsonl}}, validate_on: a}",
        "features=f",
        "output=o",
        "head={kind: eagle}",
    )
    assert read_training_spec(spec, settings).target.trust_remote_code is False
    assert read_training_spec(spec, settings, trust_remote_code=True).target.trust_remote_code is True
