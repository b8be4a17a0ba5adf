"""What `head show` says of a folder, and what `head convert` makes of it."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM
from typer.testing import CliRunner

from specdec.cli import app
from specdec.heads.architectures import new_head
from specdec.heads.block import BlockConfig
from specdec.heads.config import HeadConfig, TrainedWith
from specdec.heads.formats.checkpoint import HeadCheckpoint
from specdec.heads.formats.layouts import Layout, needs_target, write_own
from specdec.heads.formats.reading import read_head
from specdec.heads.hydra import HydraConfig
from specdec.heads.medusa import MedusaConfig

HIDDEN, VOCAB = 16, 40
LAYER = {"hidden_size": HIDDEN, "intermediate_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4}
CONFIGS = {
    "eagle": HeadConfig(**LAYER, vocab_size=VOCAB, embedding_scale=2.0),
    "eagle3": HeadConfig(**LAYER, vocab_size=VOCAB, layers=(0, 1), own_lm_head=True, embedding_scale=2.0, fc_bias=False),
    "medusa": MedusaConfig(hidden_size=HIDDEN, vocab_size=VOCAB, num_heads=2, draft_vocab_size=8),
    "block": BlockConfig(**LAYER, vocab_size=VOCAB, layers=(1, 2), block_size=4, mask_token_id=39),
    "hydra": HydraConfig(hidden_size=HIDDEN, vocab_size=VOCAB, num_heads=2, prefix=LAYER, embedding_scale=2.0),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**LAYER, vocab_size=VOCAB, num_hidden_layers=2, max_position_embeddings=64)).save_pretrained(
        folder
    )
    return folder


@pytest.fixture
def head(tmp_path):
    def make(kind, **changes):
        config = CONFIGS[kind].model_copy(update=changes)
        torch.manual_seed(0)
        ids = None if config.draft_vocab_size is None else torch.arange(8) * 3
        write_own(tmp_path / kind, HeadCheckpoint(new_head(config), ids))
        return tmp_path / kind

    return make


def run(*arguments, code=0):
    result = CliRunner().invoke(app, ["head", *(str(argument) for argument in arguments)])
    assert result.exit_code == code, result.output
    return result.output


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_head_is_shown_with_its_kind_layout_sizes_and_targets(head, kind):
    folder = head(kind, trained_with=TrainedWith(target="org/tiny"))
    text = run("show", folder)
    assert f"{kind}, in the layout 'specdec'" in text
    assert "16 wide, with a vocabulary of 40 to 1,063 tokens" in text
    assert "org/tiny" in text
    data = json.loads(run("show", folder, "--json"))
    assert (data["kind"], data["layout"], data["fits"]["hidden_size"]) == (kind, "specdec", HIDDEN)
    assert data["parameters"] == sum(p.numel() for p in read_head(folder).head.parameters())
    assert data["lm_head"] is (kind == "eagle3")


def test_the_shipped_heads_are_shown_by_their_kind():
    data = json.loads(run("show", "eagle3", "--json"))
    assert (data["kind"], data["config"]["layers"]) == ("eagle3", [2, 15, 27])


def test_a_target_that_fits_is_said_and_one_that_does_not_is_an_error(head, model, tmp_path):
    assert f"it fits {model}" in run("show", head("medusa"), "--target", model)
    config = json.loads((model / "config.json").read_text())
    (tmp_path / "wide").mkdir()
    (tmp_path / "wide" / "config.json").write_text(json.dumps({**config, "hidden_size": 32}))
    text = run("show", head("medusa"), "--target", tmp_path / "wide", code=2)
    assert "reads hidden states 16 wide" in text


def test_all_that_is_wrong_with_a_folder_is_listed(head):
    folder = head("medusa")
    tensors = load_file(folder / "model.safetensors")
    del tensors["heads.0.0.linear.bias"]
    save_file({**tensors, "stray": torch.ones(2)}, folder / "model.safetensors")
    assert "missing: heads.0.0.linear.bias; superfluous: stray" in " ".join(run("show", folder, code=2).split())


@pytest.mark.parametrize(
    ("kind", "to", "weights"),
    [
        ("eagle", None, "model"),
        ("eagle3", None, "model"),
        ("medusa", None, "medusa_lm_head"),
        ("medusa", "vllm-medusa", "model"),
        ("hydra", None, "hydra_lm_head"),
        ("block", None, "model"),
    ],
)
def test_a_head_is_converted_to_the_layout_of_others_and_back_and_computes_the_same(head, model, tmp_path, kind, to, weights):
    folder, out, back = head(kind), tmp_path / "out", tmp_path / "back"
    arguments = ["--target", model, "--max-positions", 64, *(["--to", to] if to else [])]
    run("convert", folder, out, *arguments)
    assert (out / f"{weights}.safetensors").is_file()
    read, written = read_head(folder), read_head(out)
    if kind in ("medusa", "hydra"):
        lm_head = load_file(model / "model.safetensors")["lm_head.weight"]
        expected = lm_head if to is None else lm_head[read.draft_ids]
        assert all(torch.equal(one.weight, expected) for one in written.head.own_lm_heads)
        assert written.draft_ids is None or torch.equal(written.draft_ids, read.draft_ids)
    if kind == "medusa":
        features = torch.randn(3, HIDDEN)
        assert torch.equal(written.head(features), read.head(features))
    run("convert", out, back, "--to", "specdec")
    again = read_head(back)
    whole = written.config.output_size == VOCAB
    assert again.config == written.config.model_copy(update={"draft_vocab_size": None} if whole else {})
    for name, tensor in written.head.state_dict().items():
        assert torch.equal(again.head.state_dict()[name], tensor)


def test_what_is_missing_for_a_layout_is_asked_for_and_no_head_is_replaced(head, model, tmp_path):
    folder = head("medusa")
    assert "--target MODEL would give it" in run("convert", folder, tmp_path / "out", code=2)
    assert "holds a head, which would be replaced" in run("convert", folder, folder, "--target", model, code=2)
    assert "takes EAGLE-1 heads" in run("convert", folder, tmp_path / "out", "--to", "eagle", "--max-positions", 9, code=2)
    assert "positions that a head was made for" in run("convert", head("eagle"), tmp_path / "out", code=2)
    assert "expected whole numbers" in run("show", folder, "--layers", "a,b", code=2)
    assert "no such folder" in run("show", tmp_path / "nowhere", code=2)


def test_only_layouts_that_hold_what_is_borrowed_need_the_target(head):
    needed = {
        (kind, layout)
        for kind in CONFIGS
        for layout in Layout
        if needs_target(read_head(head(kind)), layout) and layout.value.endswith((kind, "speculators"))
    }
    assert {("medusa", Layout.MEDUSA), ("medusa", Layout.VLLM_MEDUSA), ("hydra", Layout.HYDRA)} <= needed
    assert ("eagle3", Layout.SPECULATORS) in needed
    assert not any(layout in (Layout.SPECDEC, Layout.EAGLE) for _, layout in needed)
