"""Checkpoints that are incomplete or damaged are refused by name; nothing decodes from made-up weights."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

import specdec
from specdec.errors import CheckpointError, SpecdecError, TargetMismatch
from specdec.interfaces.declarations import TargetDeclaration
from specdec.interfaces.parts import BuildTools
from specdec.targets.huggingface import HuggingFaceOptions, HuggingFaceTarget

QUERY = "model.layers.0.self_attn.q_proj.weight"


def build(folder, **options):
    return HuggingFaceTarget.build(HuggingFaceOptions(model=str(folder), device="cpu", probe=False, **options), BuildTools())


def declare(folder):
    return HuggingFaceTarget.declares(HuggingFaceOptions(model=str(folder)))


@pytest.fixture(scope="module")
def whole(make_model, tmp_path_factory):
    path = tmp_path_factory.mktemp("whole")
    make_model("llama", torch.float32).save_pretrained(path)
    return path


@pytest.fixture
def folder(whole, tmp_path):
    shutil.copytree(whole, tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def edit(folder):
    """Change the weights of the folder by a function of {name: tensor}."""

    def rewrite(change):
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    return rewrite


def test_a_whole_checkpoint_loads(folder):
    assert build(folder).facts.vocab_size == 96


def test_a_missing_tensor_is_named(folder, edit):
    edit(lambda tensors: tensors.pop(QUERY))
    with pytest.raises(CheckpointError, match=f"missing: {QUERY}"):
        build(folder)


def test_a_missing_head_is_named_unless_it_is_tied(folder, edit):
    edit(lambda tensors: tensors.pop("lm_head.weight"))
    with pytest.raises(CheckpointError, match=r"missing: lm_head\.weight"):
        build(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    build(folder)


def test_a_superfluous_tensor_is_named(folder, edit):
    edit(lambda tensors: tensors.update({"model.layers.2.mlp.up_proj.weight": torch.ones(3)}))
    with pytest.raises(CheckpointError, match=r"not of this model: model\.layers\.2\.mlp\.up_proj\.weight"):
        build(folder)


def test_buffers_of_older_checkpoints_are_no_fault(folder, edit):
    edit(lambda tensors: tensors.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}))
    build(folder)


def test_a_tensor_of_another_shape_is_named_with_both(folder, edit):
    edit(lambda tensors: tensors.update({QUERY: torch.ones(3, 5)}))
    with pytest.raises(CheckpointError, match=rf"of another shape: {QUERY} \(3x5 for 32x32\)"):
        build(folder)


def test_many_faults_are_counted(folder, edit):
    edit(lambda tensors: [tensors.pop(name) for name in list(tensors) if ".layers.1." in name])
    with pytest.raises(CheckpointError, match=r"missing: .* and 3 more"):
        build(folder)


@pytest.mark.parametrize("damage", [lambda b: b"no weights" * 9, lambda b: b[: len(b) // 2], lambda b: b""])
def test_a_damaged_file_of_weights_is_named(folder, damage):
    file = folder / "model.safetensors"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(CheckpointError, match=r"model\.safetensors of .* is damaged"):
        build(folder)


class Code:
    def __reduce__(self):
        return print, ("run",)


def test_pickled_weights_load_unless_they_hold_more_than_tensors(folder, capfd):
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(tensors, folder / "pytorch_model.bin")
    build(folder)
    torch.save({**tensors, "more": Code()}, folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="a checkpoint in safetensors would work"):
        build(folder)
    (folder / "pytorch_model.bin").write_bytes(b"no weights")
    with pytest.raises(CheckpointError, match="pickled weights are damaged"):
        build(folder)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"{no json", r"config\.json of .* is no JSON: .*line 1 column 2"),
        (b"\xff\xfe", "is no JSON"),
        (b"", "is no JSON"),
        (b"[]", "holds a list, expected an object"),
        (b"{}", "cannot be read: Unrecognized model"),
        (b'{"model_type": "llama", "hidden_size": "many"}', "cannot be read: .*hidden_size"),
        (b'{"model_type": "llama", "num_attention_heads": 0}', "cannot be read"),
    ],
)
def test_a_broken_config_is_told_before_anything_is_loaded(folder, text, message):
    (folder / "config.json").write_bytes(text)
    for act in (declare, build):
        with pytest.raises(TargetMismatch, match=message):
            act(folder)


def test_a_folder_without_a_config_is_told_before_anything_is_loaded(tmp_path):
    with pytest.raises(TargetMismatch, match=r"has no config\.json"):
        declare(tmp_path)


@pytest.mark.parametrize(
    "files",
    [
        {"tokenizer.json": "garbage"},
        {"tokenizer.json": "{}"},
        {"tokenizer.json": "{}", "tokenizer_config.json": '{"tokenizer_class": "PreTrainedTokenizerFast"}'},
        {"tokenizer_config.json": "{garbage"},
        {"tokenizer_config.json": '{"tokenizer_class": "LlamaTokenizer"}'},
        {"tokenizer.model": "garbage"},
    ],
)
def test_a_damaged_tokenizer_is_no_missing_tokenizer(folder, files):
    for name, text in files.items():
        (folder / name).write_text(text)
    with pytest.raises(CheckpointError, match=r"the tokenizer of .* cannot be read"):
        build(folder)


def test_a_folder_without_files_of_a_tokenizer_has_no_codec(folder):
    assert build(folder).codec is None


def test_a_tokenizer_of_few_words_is_one(folder):
    words = Tokenizer(models.WordLevel({"<unk>": 0, "a": 1, "b": 2}, unk_token="<unk>"))
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>").save_pretrained(folder)
    assert build(folder).codec.vocabulary()["b"] == 2


def test_nothing_is_known_of_a_hub_id_that_is_not_at_hand():
    assert declare("nobody/no-such-model") == TargetDeclaration()


def test_a_misspelt_name_is_told_before_anything_is_loaded():
    for act in (declare, build):
        with pytest.raises(TargetMismatch, match="did you mean 'builtin'"):
            act("bultin")


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.bool, torch.float8_e4m3fn])
@pytest.mark.parametrize("pickled", [False, True])
def test_weights_that_would_be_cast_without_a_word_are_named(folder, edit, dtype, pickled):
    edit(lambda tensors: tensors.update({QUERY: torch.ones(32, 32).to(dtype)}))
    if pickled:
        torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=rf"names no quantization: {QUERY} \("):
        build(folder)


def test_shards_of_an_index_are_looked_at_too(make_model, tmp_path):
    make_model("llama", torch.float32).save_pretrained(tmp_path, max_shard_size="20KB")
    files = sorted(tmp_path.glob("model-*.safetensors"))
    assert len(files) > 1
    tensors = load_file(files[-1])
    name = next(name for name in tensors if name.endswith(".weight"))
    save_file({**tensors, name: tensors[name].to(torch.int32)}, files[-1], metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=rf"{name} \(I32\)"):
        build(tmp_path)


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_of_another_floating_dtype_are_cast_as_asked(folder, edit, stored):
    edit(lambda tensors: tensors.update({name: tensor.to(stored) for name, tensor in tensors.items()}))
    assert build(folder, dtype="float32").facts.dtype == torch.float32


def test_buffers_of_whole_numbers_are_no_fault(make_model, tmp_path):
    make_model("gpt2", torch.float32).save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["transformer.h.0.attn.bias"] = torch.ones(1, 1, 4, 4, dtype=torch.bool)
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    build(tmp_path)


def test_an_adapter_is_not_left_out_where_peft_is_missing(folder, monkeypatch):
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "x", "peft_type": "LORA"}')
    (folder / "adapter_model.safetensors").write_bytes(b"")
    monkeypatch.setattr("specdec.targets.model_config.find_spec", lambda name: None)
    for act in (declare, build):
        with pytest.raises(TargetMismatch, match=r"adapter .*pip install 'specdec\[peft\]'"):
            act(folder)
    (folder / "config.json").unlink()
    with pytest.raises(TargetMismatch, match="adapter"):
        declare(folder)


@pytest.mark.parametrize(
    "change",
    [
        {"hidden_act": "no such thing"},
        {"hidden_act": ["silu"]},
        {"head_dim": 0},
        {"head_dim": 7},
        {"num_key_value_heads": 3},
        {"vocab_size": -5},
        {"rope_parameters": {"rope_type": "nothing"}},
        {"rope_parameters": {"rope_type": "linear"}},
        {"pad_token_id": 10**6},
        {"layer_types": ["full_attention"]},
        {"sliding_window": "x"},
        {"sliding_window": 1.5},
        {"text_config": {"a": 1}},
        {"text_config": 7},
    ],
    ids=str,
)
def test_a_config_that_makes_no_model_is_not_called_a_fault_of_specdec(folder, change):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(SpecdecError) as error:
        specdec.load("ngram-tree", target=folder)
    assert "of 'specdec' fails:" not in str(error.value)
