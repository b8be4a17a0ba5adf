"""Real `specdec train` processes that are killed wherever a file changes, and at some moments between."""

import json
import shutil
import subprocess
import sys

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specdec.targets.gguf_cache import unpacked_folder

SPEC = """
name: killed
target: {use: huggingface, model: model, dtype: float32, device: cpu}
features: features
output: run
data:
  sources: {own: {path: own.jsonl, max_tokens: 64}}
  validate_on: own
  held_out_share: 0.3
  tokens_per_shard: 150
  top_k: 4
  first_tokens: 200
  tokens_per_epoch: 150
head: {draft_vocab_size: 300, intermediate_size: 16}
losses: {regression: 0.1, cross_entropy: 1.0}
noise: {width: 0.1}
optimizer: {use: muon}
steps: {start: 1, end: 2, switch_at: 0.4}
budget: {steps: 9}
tokens_per_batch: 200
autocast: false
validate_every: 4
checkpoint_every: 3
"""

FORKS = """
import json, os, random, signal, sys, time
from pathlib import Path
import torch
torch.set_num_threads(1)
from typer.testing import CliRunner
from transformers import AutoModelForCausalLM, AutoTokenizer
import specdec.training.run, specdec.compose, specdec.cli.train
from specdec.cli import app

class Writes:
    \"\"\"Counts changes of files in a folder, and kills this process before the one of a given number.\"\"\"
    def __init__(self, folder, last):
        self.folder, self.left = str(folder), last
        sys.addaudithook(self)
    def __call__(self, event, args):
        writing = event == "open" and isinstance(args[1], str) and set(args[1]) & set("wa+x")
        if (writing or event in ("os.rename", "os.truncate")) and str(args[0]).startswith(self.folder):
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

def train(folder, *, kill_at=None, kill_after=None):
    \"\"\"Whether a child process that trains in a folder came to its end.\"\"\"
    child = os.fork()
    if child == 0:
        if kill_at is not None:
            Writes(folder, kill_at)
        result = CliRunner().invoke(app, ["train", str(folder / "killed.yaml")])
        if result.exit_code:
            sys.stderr.write(result.output + repr(result.exception))
        os._exit(result.exit_code)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise SystemExit("the child failed")
    return os.WIFEXITED(status)

def result(folder):
    state = torch.load(folder / "run" / "checkpoint.pt", weights_only=True)
    head = (folder / "run" / "head" / "model.safetensors").read_bytes()
    counters = {k: v for k, v in state["counters"].items() if k != "seconds"}
    shards = [Path(p).name for p in state["epoch_shards"]]
    return state["head"], head, counters, shards, sorted(p.name for p in (folder / "features").iterdir())

def copy(name):
    folder = root / name
    folder.mkdir()
    for file in ("killed.yaml", "own.jsonl", "model"):
        (folder / file).symlink_to(root / file)
    return folder

def same(one, other):
    return one[1:] == other[1:] and all(torch.equal(one[0][name], other[0][name]) for name in one[0])

root = Path(sys.argv[1])
for imported in (AutoModelForCausalLM, AutoTokenizer):
    imported.from_pretrained(root / "model")  # once for all children: it imports for seconds
whole = copy("whole")
started = time.monotonic()
assert train(whole)
took = time.monotonic() - started
expected = result(whole)
report = {"whole": list(expected[2].items()), "different": [], "kills": 0}
step = int(sys.argv[2])
place, ended = 1, False
while not ended:
    folder = copy(f"at-{place}")
    ended = train(folder, kill_at=place)
    report["kills"] += not ended
    if not ended and not train(folder):
        report["different"].append(f"write {place}: no end")
    if not same(result(folder), expected):
        report["different"].append(f"write {place}")
    place += step
folder = copy("often")
for share in (0.5, 0.8):
    report["kills"] += not train(folder, kill_after=share * took)
train(folder)
if not same(result(folder), expected):
    report["different"].append("killed again and again")
print(json.dumps(report))
"""


@pytest.fixture
def folder(tmp_path):
    """A tiny model with a real tokenizer, some of its own answers, and the spec."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1}
    config = LlamaConfig(
        vocab_size=49152,
        num_hidden_layers=1,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        initializer_range=0.3,
        **sizes,
    )
    model = LlamaForCausalLM(config)
    model.save_pretrained(tmp_path / "model")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(unpacked_folder() / name, tmp_path / "model" / name)
    (tmp_path / "killed.yaml").write_text(SPEC)
    return tmp_path


@pytest.mark.slow
def test_a_run_that_is_killed_at_any_point_ends_in_the_weights_and_files_of_one_that_was_not(folder, tmp_path):
    questions = tmp_path / "questions.jsonl"
    questions.write_text("".join(json.dumps({"question": f"What is {n}?", "answer": "-"}) + "\n" for n in range(24)))
    distill = ["data", "distill", str(questions), str(tmp_path / "own.jsonl"), "--target", str(tmp_path / "model")]
    subprocess.run([sys.executable, "-m", "specdec", *distill, "--max-new-tokens", "12"], check=True, capture_output=True)
    ran = subprocess.run([sys.executable, "-c", FORKS, str(folder), "6"], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    report = json.loads(ran.stdout)
    assert dict(report["whole"])["step"] == 9
    assert dict(report["whole"])["epoch"] >= 2
    assert report["kills"] >= 4
    assert report["different"] == []
