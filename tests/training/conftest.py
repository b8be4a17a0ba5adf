"""A small target's features on disk, made up from a seed, and a trainer on them."""

import pytest
import torch
from safetensors.torch import save_file

from specdec.heads.config import HeadConfig, Inputs
from specdec.interfaces.text_codec import TextCodec
from specdec.training.borrowed import Borrowed
from specdec.training.dataset import Batch, FeatureSet
from specdec.training.initialization import fresh_head
from specdec.training.loop import Trainer
from specdec.training.spec import TrainingSpec

HIDDEN, VOCAB, TOP = 16, 40, 5


def sizes(**changes) -> HeadConfig:
    return HeadConfig(
        hidden_size=HIDDEN,
        intermediate_size=24,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=4,
        vocab_size=VOCAB,
        **changes,
    )


class Digits(TextCodec):
    """Text is digits with spaces; a conversation is its words, each message after `opening`."""

    special_tokens = {}
    control_tokens = ()
    chat_template = None

    def __init__(self, opening=()):
        self.opening = list(opening)

    def encode(self, text, **options):
        return [int(word) for word in text.split()]

    def decode(self, ids):
        return " ".join(str(token) for token in ids)

    def chat(self, messages, chat_format=None):
        return [token for message in messages for token in [*self.opening, *self.encode(message["content"])]]

    def tokenizer_json(self):
        return None

    def vocabulary(self):
        return {str(token): token for token in range(8)}


@pytest.fixture(scope="session")
def digits():
    return Digits


@pytest.fixture(scope="session")
def head_sizes():
    return sizes


@pytest.fixture
def borrowed():
    generator = torch.Generator().manual_seed(5)
    return Borrowed(torch.randn(VOCAB, HIDDEN, generator=generator), torch.randn(VOCAB, HIDDEN, generator=generator), None)


@pytest.fixture
def shard(borrowed):
    """Writes a shard: the text cycles through the vocabulary, the feature points at the next token's LM-head row."""

    def write(path, lengths, seed=0):
        generator = torch.Generator().manual_seed(seed)
        ids = torch.cat([(torch.arange(n) * 3 + int(torch.randint(VOCAB, (), generator=generator))) % VOCAB for n in lengths])
        spoken = torch.cat([torch.arange(n) >= 2 for n in lengths])
        features = borrowed.lm_head[(ids + 3) % VOCAB] + 0.1 * torch.randn(len(ids), HIDDEN, generator=generator)
        top = (features @ borrowed.lm_head.T).topk(TOP)
        save_file(
            {
                "token_ids": ids.to(torch.int32),
                "spoken": spoken,
                "features": features,
                "layers": features[:, None].repeat(1, 2, 1).contiguous(),
                "top_ids": top.indices.to(torch.int32),
                "top_logits": top.values,
                "lengths": torch.tensor(lengths, dtype=torch.int32),
            },
            path,
        )
        return path

    return write


@pytest.fixture
def batch(shard, tmp_path):
    """The batch of conversations of these lengths."""

    def make(*lengths, layers=False, seed=0) -> Batch:
        path = shard(tmp_path / f"batch-{seed}.safetensors", list(lengths), seed)
        return FeatureSet([path], layers=layers).load(range(len(lengths)))

    return make


@pytest.fixture
def small_yaml(tmp_path):
    """The least that a spec must say, in a file."""
    path = tmp_path / "small.yaml"
    path.write_text(
        """
name: small
target: {use: builtin}
features: features
output: run
data: {sources: {own: {path: own.jsonl}}, validate_on: own}
budget: {steps: 2}
"""
    )
    return path


@pytest.fixture
def trainer(shard, tmp_path, borrowed):
    """A trainer of float32, on two small shards; `output` tells runs apart."""

    def make(output, own_lm_head=False, inputs=Inputs.FEATURE_AND_SHIFTED_TOKEN, config=None, **changes) -> Trainer:
        paths = [shard(tmp_path / f"own-000{i}.safetensors", [9, 12, 17, 8, 11], i) for i in range(2)]
        held = FeatureSet([shard(tmp_path / "held-0000.safetensors", [14, 15], 9)], layers=False)
        plan = {
            "name": "small",
            "target": {"use": "builtin"},
            "features": tmp_path,
            "output": tmp_path / output,
            "data": {"sources": {"own": {"path": tmp_path / "own.jsonl"}}, "validate_on": "own"},
            "budget": {"steps": 30},
            "tokens_per_batch": 40,
            "autocast": False,
            "validate_every": 10,
            "checkpoint_every": 1000,
            "noise": {"width": 0.2},
            **changes,
        }
        head = fresh_head(config or sizes(own_lm_head=own_lm_head, inputs=inputs), borrowed.lm_head, 0)
        log = []
        made = Trainer(TrainingSpec(**plan), head, borrowed, lambda epoch: paths, held, log.append)
        made.log = log
        return made

    return make
