"""Medusa folders as their authors and vLLM lay them out: read, written, and refused by the names of their own tensors."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from specdec.errors import CheckpointError
from specdec.heads.formats.config_file import head_config, read_config
from specdec.heads.formats.medusa import write_authors_medusa, write_vllm_medusa
from specdec.heads.formats.reading import read_head
from specdec.heads.medusa import MedusaConfig

HIDDEN, VOCAB, HEADS = 8, 20, 5
AUTHORS = {"medusa_num_heads": 2, "medusa_num_layers": 1, "base_model_name_or_path": "org/target", "version": "2"}
VLLM = {
    "model_type": "medusa",
    "architectures": ["MedusaModel"],
    "hidden_size": HIDDEN,
    "vocab_size": VOCAB,
    "num_heads": 2,
    "num_hidden_layers": 2,
    "truncated_vocab_size": VOCAB,
    "original_lm_head": False,
    "medusa_fc_bias": False,
}


def filled(shapes) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def authors_tensors(heads=HEADS, blocks=1, prefix="") -> dict[str, torch.Tensor]:
    shapes: dict[str, tuple[int, ...]] = {}
    for head in range(heads):
        for block in range(blocks):
            shapes[f"{prefix}{head}.{block}.linear.weight"] = (HIDDEN, HIDDEN)
            shapes[f"{prefix}{head}.{block}.linear.bias"] = (HIDDEN,)
        shapes[f"{prefix}{head}.{blocks}.weight"] = (VOCAB, HIDDEN)
    return filled(shapes)


def vllm_tensors(rows=VOCAB) -> dict[str, torch.Tensor]:
    blocks = {f"blocks.{head}.layers.{block}.weight": (HIDDEN, HIDDEN) for head in range(2) for block in range(2)}
    return filled({**blocks, "lm_heads.0.weight": (rows, HIDDEN), "lm_heads.1.weight": (rows, HIDDEN)})


@pytest.fixture
def folder(tmp_path):
    def write(config, tensors, *, pickled=False):
        (tmp_path / "config.json").write_text(json.dumps(config))
        if pickled:
            torch.save(tensors, tmp_path / "medusa_lm_head.pt")
        else:
            save_file(tensors, tmp_path / "medusa_lm_head.safetensors")
        return tmp_path

    return write


@pytest.mark.parametrize("pickled", [True, False])
@pytest.mark.parametrize("prefix", ["", "medusa_head."])
def test_the_authors_heads_are_counted_in_the_weights_whatever_the_config_says(folder, pickled, prefix):
    place = folder(AUTHORS, authors_tensors(prefix=prefix), pickled=pickled)
    sizes = {"hidden_size": HIDDEN, "vocab_size": VOCAB, "num_heads": 5, "num_blocks": 1, "own_lm_head": True}
    assert head_config(read_config(place)) == MedusaConfig(**sizes)
    tensors, state = authors_tensors(), read_head(place).head.state_dict()
    for head in range(HEADS):
        assert torch.equal(state[f"heads.{head}.0.linear.weight"], tensors[f"{head}.0.linear.weight"])
        assert torch.equal(state[f"heads.{head}.0.linear.bias"], tensors[f"{head}.0.linear.bias"])
        assert torch.equal(state[f"lm_heads.{head}.weight"], tensors[f"{head}.1.weight"])


def test_vllms_heads_are_read_with_and_without_a_reduced_vocabulary(folder):
    place = folder(VLLM, vllm_tensors())
    config = head_config(read_config(place))
    assert (config.num_heads, config.num_blocks, config.bias, config.draft_vocab_size) == (2, 2, False, None)
    kept = torch.tensor([1, 4, 19])
    reduced = {**VLLM, "truncated_vocab_size": 3}
    for rows in (3, VOCAB):
        read = read_head(folder(reduced, {**vllm_tensors(rows), "token_map": kept}))
        assert torch.equal(read.draft_ids, kept)
        whole = vllm_tensors(rows)["lm_heads.1.weight"]
        assert torch.equal(read.head.lm_heads[1].weight, whole if rows == 3 else whole[kept])
    with pytest.raises(CheckpointError, match="missing: token_map"):
        head_config(read_config(folder(reduced, vllm_tensors(3))))


@pytest.mark.parametrize("name", ["lm_head.weight", "lm_heads.0.weight"])
def test_one_lm_head_for_all_of_vllms_heads_is_kept_beside_them(folder, name):
    shared = {"original_lm_head": True}
    tensors = {n: t for n, t in vllm_tensors().items() if not n.startswith("lm_heads")} | filled({name: (VOCAB, HIDDEN)})
    read = read_head(folder({**VLLM, **shared}, tensors))
    assert read.head.lm_heads is None
    assert torch.equal(read.lm_head, tensors[name])


@pytest.mark.parametrize(
    ("config", "tensors", "change", "message"),
    [
        (
            AUTHORS,
            authors_tensors(),
            {"2.1.weight": None, "4.0.linear.bias": None},
            r"missing: 2\.1\.weight, 4\.0\.lin",
        ),
        (AUTHORS, authors_tensors(), {"d2t": torch.ones(2).long()}, "superfluous: d2t"),
        (AUTHORS, authors_tensors(), {"norm.weight": torch.ones(8)}, r"superfluous: norm\.weight"),
        (AUTHORS, authors_tensors(), {"3.0.linear.weight": torch.ones(8, 7)}, r"misshapen: 3\.0\.linear\.weight \(8, 7\)"),
        (AUTHORS, authors_tensors(), {"3.0.linear.bias": torch.full((8,), torch.nan)}, "NaN or infinity"),
        (VLLM, vllm_tensors(), {"blocks.1.layers.0.weight": None}, r"missing: blocks\.1\.layers\.0\.weight"),
        (VLLM, vllm_tensors(), {"blocks.1.layers.0.bias": torch.ones(8)}, r"superfluous: blocks\.1\.layers\.0\.bias"),
        (VLLM, vllm_tensors(), {"embed_tokens.weight": torch.ones(20, 8)}, r"superfluous: embed_tokens\.weight"),
        ({**VLLM, "logit_scale": 0.5}, vllm_tensors(), {}, "not supported: logit_scale: 0.5"),
        (AUTHORS, {"fc.weight": torch.ones(2)}, {}, "not a Medusa head"),
    ],
)
def test_what_is_wrong_with_a_folder_is_said_in_its_own_names(folder, config, tensors, change, message):
    kept = {name: tensor for name, tensor in {**tensors, **change}.items() if tensor is not None}
    with pytest.raises(CheckpointError, match=message):
        read_head(folder(config, kept))


def test_the_authors_layout_comes_back_as_it_was_written(folder, tmp_path):
    place = folder(AUTHORS, authors_tensors(blocks=2))
    write_authors_medusa(tmp_path / "out", read_head(place), target="org/target")
    assert load_file(tmp_path / "out" / "medusa_lm_head.safetensors").keys() == authors_tensors(blocks=2).keys()
    data = json.loads((tmp_path / "out" / "config.json").read_text())
    assert data == {**AUTHORS, "medusa_num_heads": 5, "medusa_num_layers": 2}
    again = read_head(tmp_path / "out")
    for name, tensor in read_head(place).head.state_dict().items():
        assert torch.equal(again.head.state_dict()[name], tensor)


def test_vllms_layout_comes_back_as_it_was_written_with_the_borrowed_rows_in_it(folder, tmp_path):
    shared = filled({"lm_head": (VOCAB, HIDDEN)})["lm_head"]
    kept = torch.tensor([1, 4, 19])
    read = read_head(folder({**VLLM, "truncated_vocab_size": 3}, {**vllm_tensors(3), "token_map": kept}))
    write_vllm_medusa(tmp_path / "own", read)
    assert load_file(tmp_path / "own" / "model.safetensors").keys() == {*vllm_tensors(), "token_map"}
    own = {"kind": "medusa", "hidden_size": HIDDEN, "vocab_size": VOCAB, "num_heads": 2, "draft_vocab_size": 3}
    blocks = {n: t for n, t in read_head(folder(AUTHORS, authors_tensors(2))).head.state_dict().items() if "lm_head" not in n}
    for old in tmp_path.glob("*.safetensors"):
        old.unlink()
    borrowed = read_head(folder(own, {**blocks, "draft_ids": kept}))
    write_vllm_medusa(tmp_path / "out", borrowed, lm_head=shared)
    again = read_head(tmp_path / "out")
    assert torch.equal(again.draft_ids, kept)
    assert all(torch.equal(one.weight, shared[kept]) for one in again.head.lm_heads)
    write_authors_medusa(tmp_path / "whole", borrowed, target="t", lm_head=shared)
    assert torch.equal(load_file(tmp_path / "whole" / "medusa_lm_head.safetensors")["1.1.weight"], shared)
    with pytest.raises(CheckpointError, match="give the target"):
        write_vllm_medusa(tmp_path / "none", borrowed)
    with pytest.raises(CheckpointError, match="no place for a reduced vocabulary"):
        write_authors_medusa(tmp_path / "none", again, target="t")
