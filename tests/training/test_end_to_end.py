"""From questions to a trained head, by the command line, on a random model of two layers with a real tokenizer."""

import json
import re
import shutil

import pytest
import torch
import typer
from safetensors.torch import load_file
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
from typer.testing import CliRunner

from specdec.cli import train
from specdec.compose import load
from specdec.heads.checkpoint_path import SHIPPED
from specdec.targets.gguf_cache import unpacked_folder
from specdec.targets.loading import load_model
from specdec.targets.model_call import ModelCall
from specdec.training.conversations import Conversation
from specdec.training.dataset import FeatureSet, draft_vocabulary
from specdec.training.features import FeaturePlan, write_shard
from specdec.training.initialization import borrow, fresh_head
from specdec.training.loop import Trainer
from specdec.training.sizes import head_config
from specdec.training.spec import TrainingSpec

SPEC = """
name: tiny
target: {{use: huggingface, model: {model}}}
features: features
output: run
data:
  sources:
    own: {{path: own.jsonl, max_tokens: 80}}
  validate_on: own
  held_out_share: 0.3
  tokens_per_shard: 400
  top_k: 8
  keep_layers: [0, 1, 2]
head: {{kind: {kind}, layers: {layers}, draft_vocab_size: 500}}
losses: {{regression: {regression}, cross_entropy: 1.0}}
budget: {{steps: 6}}
steps: {{start: 1, end: 2, switch_at: 0.5}}
tokens_per_batch: 300
validate_every: 3
"""


def the_app():
    app = typer.Typer()
    train.register(app)
    return app


FURTHER = """
name: further
target: {{use: builtin}}
features: features
output: run
start_from: {head}
data: {{sources: {{own: {{path: own.jsonl}}}}, validate_on: own}}
head: {{kind: eagle3}}
budget: {{steps: 6}}
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        initializer_range=0.3,
        eos_token_id=2,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(unpacked_folder() / name, folder / name)
    return folder


def run(*arguments):
    app = the_app()
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output + str(result.exception)
    return result.output


@pytest.fixture(scope="module")
def gpt2(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpt2")
    torch.manual_seed(0)
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256}
    GPT2LMHeadModel(GPT2Config(vocab_size=49152, **sizes, initializer_range=0.3, eos_token_id=2)).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(model / name, folder / name)
    return folder


@pytest.mark.slow
def test_a_head_for_gpt2_trains_and_drafts(gpt2, tmp_path):
    questions = tmp_path / "questions.jsonl"
    questions.write_text("".join(json.dumps({"question": f"What is {n}?"}) + "\n" for n in range(24)))
    run("data", "distill", questions, tmp_path / "own.jsonl", "--target", gpt2, "--max-new-tokens", 20)
    spec = tmp_path / "tiny.yaml"
    spec.write_text(SPEC.format(model=gpt2, kind="eagle", layers="[]", regression=0.1))
    assert "step 6" in run("train", spec, "--set", "target.dtype=float32")
    target = {"use": "huggingface", "model": str(gpt2), "dtype": "float32"}
    drafting = load("own-model-eagle", target=target, set={"drafter.head": str(tmp_path / "run" / "head")})
    plain = load("plain", target=target)
    (ours,), (theirs,) = (d.generate(["What is 7?"], max_new_tokens=12) for d in (drafting, plain))
    assert ours.tokens == theirs.tokens


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["eagle", "eagle3", "medusa"])
def test_questions_become_answers_features_and_a_head(model, tmp_path, kind):
    questions = tmp_path / "questions.jsonl"
    questions.write_text("".join(json.dumps({"question": f"What is {n}?", "answer": "-"}) + "\n" for n in range(24)))
    output = run("data", "distill", questions, tmp_path / "own.jsonl", "--target", model, "--max-new-tokens", 20)
    assert "24 of 24" in output
    spec = tmp_path / "tiny.yaml"
    layers, regression = "[0, 1, 2]" if kind == "eagle3" else "[]", 0.1 if kind == "eagle" else 0.0
    spec.write_text(SPEC.format(model=model, kind=kind, layers=layers, regression=regression))
    output = run("train", spec, *(["--set", "steps.end=1"] if kind == "medusa" else []))
    assert re.search(r"features still to be computed: [\d,]+ tokens, [\d.]+ GB, about \d+ minutes", output)
    assert "step 6" in output
    records = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert records[-1]["step"] == 6
    tensors = load_file(tmp_path / "run" / "head" / "model.safetensors")
    assert tensors["draft_ids"].shape == (500,)
    assert ("lm_head.weight" in tensors) is (kind == "eagle3")
    further = [
        "--set",
        "output=further",
        "--set",
        "start_from=run/head",
        *(["--set", "steps.end=1"] if kind == "medusa" else []),
    ]
    assert "step 6" in run("train", spec, *further)
    log = [json.loads(line) for line in (tmp_path / "further" / "log.jsonl").read_text().splitlines()]
    taus = {record["step"]: record["tau"] for record in log if "tau" in record}
    best = json.loads((tmp_path / "run" / "head" / "validation.json").read_text())
    assert taus[0] == pytest.approx(best["tau"], abs=0.02)  # weights are kept in bfloat16
    assert torch.equal(load_file(tmp_path / "further" / "head" / "model.safetensors")["draft_ids"], tensors["draft_ids"])


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("head.draft_vocab_size=400", "head.draft_vocab_size: 400, where that head has 8192"),
        ("head.kind=eagle", "kind 'eagle3'"),
        ("start_from=nowhere", "no such folder"),
    ],
)
def test_a_run_takes_the_sizes_of_the_head_that_it_starts_from(tmp_path, setting, message):
    spec = tmp_path / "further.yaml"
    spec.write_text(FURTHER.format(head=SHIPPED / "eagle3"))
    app = the_app()
    result = CliRunner().invoke(app, ["train", str(spec), "--set", setting])
    assert message in str(result.exception) + result.output


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "share"),
    [
        ({}, 0.8),
        ({"inputs": "feature-unshifted", "train_lm_head": True}, 0.3),
        ({"kind": "medusa"}, 0.3),
        ({"kind": "hydra", "prefix": True}, 0.3),
        ({"kind": "block", "layers": (1, 2), "causal": True}, 0.3),
    ],
    ids=["usual", "unshifted, with an LM head", "medusa", "hydra++", "one pass"],
)
def test_a_head_that_knows_four_answers_by_heart_drafts_them_in_the_decoder_as_validation_says(model, tmp_path, changes, share):
    limit = 24
    questions = [[{"role": "user", "content": f"Tell me about {thing}."}] for thing in ("cats", "rain", "glass", "tea")]
    plain = load("plain", target={"use": "huggingface", "model": str(model), "dtype": "float32"})
    answers = plain.generate(questions, max_new_tokens=limit, ignore_eos=True)
    told = [
        Conversation(
            tuple(answer.prompt_tokens) + tuple(answer.tokens),
            (False,) * len(answer.prompt_tokens) + (True,) * len(answer.tokens),
            f"{place:064x}",
        )
        for place, answer in enumerate(answers)
    ]
    call = ModelCall(load_model(str(model), dtype="float32", device="cpu", attention="sdpa"))
    write_shard(call, told, FeaturePlan(8, changes.get("layers", ())), tmp_path / "own-0000.safetensors")
    data = FeatureSet([tmp_path / "own-0000.safetensors"], layers="layers" in changes)
    spec = TrainingSpec(
        name="by heart",
        target={"use": "huggingface", "model": str(model)},
        features=tmp_path,
        output=tmp_path / "run",
        data={"sources": {"own": {"path": tmp_path / "none.jsonl"}}, "validate_on": "own"},
        head={"draft_vocab_size": 300, **changes},
        losses={"regression": 0.0 if "kind" in changes else 0.1, "cross_entropy": 1.0},
        optimizer={"use": "muon", "muon_learning_rate": 0.05, "learning_rate": 5e-3},
        steps={} if "kind" in changes else {"start": 2, "end": 5, "switch_at": 0.6},
        budget={"steps": 200},
        tokens_per_batch=4096,
        autocast=False,
        validate_every=1000,
        checkpoint_every=1000,
    )
    borrowed = borrow(call, draft_vocabulary(data.token_counts(call.vocab_size), 300))
    fresh = fresh_head(head_config(spec.head, call.config, borrowed.embedding, data), borrowed.lm_head, 0)
    run = Trainer(spec, fresh, borrowed, lambda epoch: [tmp_path / "own-0000.safetensors"], data, lambda record: None)
    run.run()
    promised = run.acceptance()
    decoder = load(
        {
            "target": {"use": "huggingface", "model": str(model), "dtype": "float32"},
            "drafter": {"use": spec.head.kind, "head": str(tmp_path / "run" / "head")},
            "tree": {"use": "chain", "length": len(promised.alpha)},
            "verifier": {"use": "match"},
        }
    )
    again = decoder.generate(questions, max_new_tokens=limit, ignore_eos=True)
    assert [answer.tokens for answer in again] == [answer.tokens for answer in answers]
    records = [record for answer in again for record in answer.records]
    tau = sum(record.committed for record in records) / len(records)
    assert sum(record.accepted for record in records) >= share * sum(record.drafted for record in records)
    # Validation starts at every token, decoding at the 16 to 20 where a step begins: one token more or less is 0.06 of tau.
    assert tau == pytest.approx(promised.tau, rel=0.1)


JUDGE = """
name: careful
target: {{use: huggingface, model: {model}, dtype: float32}}
output: run
data: {{path: labelled.jsonl, max_tokens: 80, held_out_share: 0.4}}
head: {{kind: judge}}
"""


def labelled_lines(count):
    """Answers in which one word is marked as wrong wherever it stands."""
    for number in range(count):
        answer = f"There are {number} lamps and bananas here, and {number + 1} doors, no bananas."
        messages = [{"role": "user", "content": f"What is in room {number}?"}, {"role": "assistant", "content": answer}]
        yield json.dumps({"messages": messages, "mistakes": ["bananas"]})


def test_a_judge_is_trained_from_labelled_answers_and_decodes(model, tmp_path):
    (tmp_path / "judge.yaml").write_text(JUDGE.format(model=model))
    (tmp_path / "labelled.jsonl").write_text("\n".join(labelled_lines(24)))
    done = CliRunner().invoke(the_app(), ["train", str(tmp_path / "judge.yaml")])
    assert done.exit_code == 0, done.output
    found = json.loads((tmp_path / "run" / "validation.json").read_text())
    assert found["area"] > 0.95
    assert found["right_kept"] > 0.9 > 0.1 > found["wrong_kept"]
    assert found["right"] > 5 * found["wrong"] > 0
    spec = {
        "target": {"use": "huggingface", "model": str(model), "dtype": "float32"},
        "drafter": "ngram",
        "tree": "chain",
        "verifier": {"use": "judge", "head": str(tmp_path / "run" / "head")},
        "allow_lossy": True,
    }
    assert load(spec).generate(["one two one two one"], max_new_tokens=8)[0].tokens


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"mistakes": ["pears"]}, r"labelled\.jsonl:1: mistakes: 'pears' does not stand in the last answer"),
        ({"mistakes": "bananas"}, r"labelled\.jsonl:1: mistakes: got 'bananas'; expected a list of texts"),
        ({"mistakes": []}, r"data: only right tokens are to learn from; more answers, some with mistakes, would work"),
    ],
)
def test_labels_that_say_nothing_are_refused_by_line(model, tmp_path, line, message):
    (tmp_path / "judge.yaml").write_text(JUDGE.format(model=model))
    record = {**json.loads(next(labelled_lines(1))), **line}
    (tmp_path / "labelled.jsonl").write_text(json.dumps(record))
    done = CliRunner().invoke(the_app(), ["train", str(tmp_path / "judge.yaml")])
    assert (done.exit_code, bool(re.search(message, done.output.replace("\n", " ")))) == (2, True), done.output
