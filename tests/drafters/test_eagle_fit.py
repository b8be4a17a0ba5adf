"""Which heads go with which targets, what they declare, and what they borrow."""

import io
import json
from collections import Counter
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, Gemma2Config, GPT2Config, GraniteConfig, LlamaConfig

from specdec.compose import load
from specdec.config.catalog import load_catalog
from specdec.config.resolver import check, read
from specdec.drafters.eagle import EagleDrafter, EagleOptions
from specdec.drafters.eagle3 import Eagle3Drafter, Eagle3Options
from specdec.errors import CheckpointError, IncompatibleParts, PluginError, SpecdecWarning, SpecError, TargetMismatch
from specdec.heads.formats.checkpoint import HeadCheckpoint
from specdec.heads.formats.eagle import write_eagle
from specdec.heads.formats.speculators import write_speculators
from specdec.heads.fused_head import FusedHead
from specdec.heads.loading import check_fit, ready
from specdec.heads.shared_weights import embeddings, lm_head_of, shared_rows
from specdec.interfaces.declarations import DrafterDeclaration, Features, Gives, Kind
from specdec.interfaces.parts import BuildTools
from specdec.interfaces.proposals import DraftStart, Frontier
from specdec.interfaces.results import HiddenStates
from specdec.targets.assembly import RunSettings, assemble
from specdec.targets.huggingface import HuggingFaceTarget
from specdec.targets.tabular import Tabular, TabularTargetOptions
from specdec.training.borrowed import Borrowed, save_head
from specdec.tree_builders.dynamic import Dynamic, DynamicOptions
from specdec.tree_builders.sampled import Sampled
from specdec.trees.draft_tree import TreeSketch
from specdec.verifiers.match import Match

COMMON = {
    "vocab_size": 48,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.3,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
GPT2 = {"vocab_size": 48, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
FAMILIES = {
    "tied": lambda: LlamaConfig(**COMMON, tie_word_embeddings=True),
    "untied": lambda: LlamaConfig(**COMMON, tie_word_embeddings=False),
    "scaled": lambda: GraniteConfig(**COMMON, embedding_multiplier=3.0, logits_scaling=4.0, tie_word_embeddings=True),
    "positions learnt": lambda: GPT2Config(**GPT2, initializer_range=0.3, bos_token_id=None, eos_token_id=None),
    "capped": lambda: Gemma2Config(**COMMON, head_dim=8, query_pre_attn_scalar=8, final_logit_softcapping=5.0),
}


def target_like(family, dtype=torch.float32) -> HuggingFaceTarget:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(FAMILIES[family]()).to(dtype).eval()
    return HuggingFaceTarget(assemble(model, RunSettings(64, None, probe=False), family), None)


@pytest.fixture(scope="module")
def family_of():
    return {name: target_like(name) for name in FAMILIES}


@pytest.fixture
def folder(tmp_path, head_of):
    """Heads as published: EAGLE-1, and EAGLE-3 in the speculators format."""
    write_eagle(tmp_path / "eagle", head_of(), max_positions=2048)
    eagle3 = head_of(layers=(1, 2, 3), own_lm_head=True, draft_vocab_size=20)
    write_speculators(tmp_path / "eagle3", eagle3, target="t", max_positions=2048)
    return tmp_path


def first_logits(drafter, target, features):
    session = drafter.open([DraftStart((5, 7), 9, target.prefill([[5, 7]], features).scored[0].hidden)])
    return session.expand([Frontier(TreeSketch(9, 2), (0,))])[0].logits


def test_a_head_declares_the_states_that_its_config_asks_for(folder):
    eagle = EagleDrafter.declares(EagleOptions(head=str(folder / "eagle")))
    assert (eagle.gives, eagle.features) == (Gives.DISTRIBUTIONS, Features(last=True))
    eagle3 = Eagle3Drafter.declares(Eagle3Options(head=str(folder / "eagle3")))
    assert eagle3.features == Features(layers=(1, 2, 3))


def test_a_hub_id_out_of_reach_is_not_downloaded_by_a_check():
    assert EagleDrafter.declares(EagleOptions(head="nobody/eagle")).features == Features(last=True)
    fused = Eagle3Drafter.declares(Eagle3Options(head="nobody/eagle3", layers=(2, 5)))
    assert (fused.features, fused.unread) == (Features(layers=(2, 5)), True)
    catalog = load_catalog()
    spec = {"drafter": {"use": "eagle", "head": "nobody/eagle"}, "tree": {"use": "chain"}, "name": "x"}
    assert [note.split(":")[0] for note in check(read(spec, catalog), catalog).notes] == ["drafter"]
    with pytest.raises(CheckpointError, match="L // 2"):
        Eagle3Drafter.declares(Eagle3Options(head="nobody/eagle3"))


def test_a_load_reads_the_heads_config_and_every_yaml_file_once(folder, target_of, tmp_path, monkeypatch):
    (tmp_path / "shape.yaml").write_text("name: shape\nsource: here\nwidths: [2, 1]\n")
    (tmp_path / "base.yaml").write_text(f"name: base\ndrafter: {{use: eagle3, head: '{folder / 'eagle3'}'}}\n")
    (tmp_path / "mine.yaml").write_text("extends: base.yaml\nname: mine\ntree: {use: fixed, file: shape.yaml}\n")
    opened, really = Counter(), io.open

    def counted(file, *given, **named):
        opened[str(file)] += 1
        return really(file, *given, **named)

    monkeypatch.setattr(io, "open", counted)
    load(tmp_path / "mine.yaml", target=target_of())
    read = {Path(file).name: count for file, count in opened.items() if file.endswith((".yaml", "config.json"))}
    assert read == {"mine.yaml": 1, "base.yaml": 1, "shape.yaml": 1, "config.json": 1}


def test_a_head_of_the_other_kind_names_the_drafter_that_would_work(folder):
    with pytest.raises(CheckpointError, match="drafter 'eagle3' would work"):
        EagleDrafter.declares(EagleOptions(head=str(folder / "eagle3"), dtype="float32"))
    with pytest.raises(CheckpointError, match="drafter 'eagle' would work"):
        Eagle3Drafter.declares(Eagle3Options(head=str(folder / "eagle")))


def test_an_eagle3_head_that_does_not_name_its_layers_is_told_from_an_eagle_head_all_the_same(folder):
    path = folder / "eagle" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "draft_vocab_size": 20}))
    with pytest.raises(CheckpointError, match="of kind 'eagle3'; drafter 'eagle3' would work"):
        EagleDrafter.declares(EagleOptions(head=str(folder / "eagle")))


@pytest.mark.parametrize("layers", [None, (2, 16, 29)])
def test_an_eagle_head_of_ones_own_is_told_from_an_eagle3_head_whatever_layers_are_given(head_of, tmp_path, layers):
    head = head_of()
    save_head(tmp_path, head.head, Borrowed(torch.zeros(48, 32), torch.zeros(48, 32), None))
    with pytest.raises(CheckpointError, match="of kind 'eagle'; drafter 'eagle' would work"):
        Eagle3Drafter.declares(Eagle3Options(head=str(tmp_path), layers=layers))


def model_folder(path, **changes):
    path.mkdir()
    (path / "config.json").write_text(
        LlamaConfig(**{**COMMON, "num_hidden_layers": 3, **changes}).to_json_string(use_diff=False)
    )
    return str(path)


def test_the_template_takes_any_head_whose_config_names_its_layers(folder, tmp_path):
    catalog = load_catalog()
    settings = [f"drafter.head={folder / 'eagle3'}", f"target={{use: huggingface, model: {model_folder(tmp_path / 'model')}}}"]
    resolved = check(read("own-model-eagle3", catalog, settings=settings), catalog)
    assert (resolved.notes, resolved.parts[Kind.DRAFTER].declares.features) == ((), Features(layers=(1, 2, 3)))
    assert check(read("own-model-eagle3", catalog), catalog).notes == ()
    with pytest.raises(
        SpecError, match=r"fuses layers \[1, 2, 3\]; got layers \[2, 16, 29\]; .* drafter\.layers may be left unset"
    ):
        check(read("own-model-eagle3", catalog, settings=[*settings, "drafter.layers=[2, 16, 29]"]), catalog)


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("eagle", {"hidden_size": 64}, "'eagle' reads hidden states 32 wide; those of target 'huggingface' are 64 wide"),
        ("eagle3", {"hidden_size": 64}, "'eagle3' reads hidden states 32 wide; those of target 'huggingface' are 64 wide"),
        ("eagle", {"vocab_size": 47}, "'eagle' is made for a vocabulary of 48 tokens; target 'huggingface' has 47"),
        ("eagle3", {"vocab_size": 5000}, "'eagle3' is made for a vocabulary of 48 tokens; target 'huggingface' has 5000"),
    ],
)
def test_a_head_of_another_width_or_vocabulary_is_refused_by_a_check(folder, tmp_path, kind, changes, message):
    catalog = load_catalog()
    drafter = {"use": kind, "head": str(folder / kind)}
    target = {"use": "huggingface", "model": model_folder(tmp_path / "model", **changes)}
    spec = {"name": "x", "drafter": drafter, "target": target, "tree": {"use": "chain"}}
    with pytest.raises(IncompatibleParts, match=message):
        check(read(spec, catalog), catalog)
    mixed = {**spec, "drafter": {"use": "mixture", "parts": [drafter, {"use": "ngram"}]}, "tree": {"use": "adaptive"}}
    with pytest.raises(IncompatibleParts, match=message.partition(" ")[2]):
        check(read(mixed, catalog), catalog)
    check(
        read({**spec, "target": {"use": "huggingface", "model": model_folder(tmp_path / "padded", vocab_size=64)}}, catalog),
        catalog,
    )


@pytest.mark.parametrize("builder", ["dynamic", "sampled"])
def test_a_head_whose_logits_are_not_finite_is_named_by_its_folder(target_of, head_of, decoder_of, tmp_path, builder):
    target, head = target_of(torch.float32), head_of(torch.float32)
    head.head.fc.weight.fill_(1e38)
    drafter = EagleDrafter(ready(head, target, dtype=torch.float32, device=target.facts.device, folder=tmp_path))
    builders = {"dynamic": (Dynamic, DynamicOptions()), "sampled": (Sampled, Sampled.Options(widths=[2, 1]))}
    declared = drafter, DrafterDeclaration(Gives.DISTRIBUTIONS, Features(last=True))
    decoder = decoder_of(target, declared, builders[builder], Match)
    with pytest.raises(PluginError, match=rf"drafter 'eagle': a row of draft logits .*: the head in {tmp_path} gave it"):
        decoder.generate([[5, 7, 9]], max_new_tokens=4)


def test_a_spec_without_a_head_and_one_with_a_whole_model_are_refused_before_weights_load(tmp_path):
    catalog = load_catalog()
    spec = {"name": "x", "tree": {"use": "chain"}, "verifier": {"use": "match"}}
    with pytest.raises(SpecError, match=r"drafter\.head: is required"):
        check(read({**spec, "drafter": {"use": "eagle"}}, catalog), catalog)
    (tmp_path / "config.json").write_text(json.dumps({**LlamaConfig(**COMMON).to_dict(), "num_hidden_layers": 2}))
    with pytest.raises(SpecError, match="not an EAGLE head"):
        check(read({**spec, "drafter": {"use": "eagle", "head": str(tmp_path)}}, catalog), catalog)


@pytest.mark.parametrize("dtype", [None, "float32", "float64"])
def test_a_published_folder_drafts_through_build(folder, target_of, head_of, dtype):
    target = target_of()
    tools = BuildTools(target=target)
    built = EagleDrafter.build(EagleOptions(head=str(folder / "eagle"), dtype=dtype), tools)
    by_hand = EagleDrafter(ready(head_of(), target, dtype=torch.float64, device=target.facts.device))
    features = Features(last=True)
    torch.testing.assert_close(
        first_logits(built, target, features), first_logits(by_hand, target, features), rtol=1e-4, atol=1e-4
    )
    fused = Eagle3Drafter.build(Eagle3Options(head=str(folder / "eagle3"), dtype=dtype), tools)
    assert first_logits(fused, target, Features(layers=(1, 2, 3))).shape == (1, 20)


def test_a_head_of_another_width_or_vocabulary_is_refused_at_load(target_of, head_of):
    target = target_of()

    def fitted(checkpoint):
        check_fit(checkpoint.config, target)
        ready(checkpoint, target, dtype=torch.float64, device=target.facts.device)

    def refused(checkpoint):
        with pytest.raises(TargetMismatch) as raised:
            fitted(checkpoint)
        return str(raised.value)

    assert "hidden states 24 wide; those of tiny are 32 wide" in refused(head_of(hidden_size=24))
    assert "embeddings are 32 wide; the head's are 24" in refused(
        head_of(hidden_size=24, layers=(0, 1), target_hidden_size=32, own_lm_head=True)
    )
    assert "a vocabulary of 5000 tokens; tiny has 48" in refused(head_of(vocab_size=5000))
    assert "a vocabulary of 49 tokens; tiny has 48" in refused(head_of(vocab_size=49))
    assert "a vocabulary of 64 tokens; tiny has 48" in refused(head_of(vocab_size=64, draft_vocab_size=30))


def test_layers_that_a_shallow_target_lacks_are_refused(target_of, head_of):
    target = target_of(num_hidden_layers=2)
    for layers in ((1, 2, 3), (1, 1, 2)):
        with pytest.raises(TargetMismatch, match="for a target of 2 layers, between 0 and 2"):
            check_fit(head_of(layers=layers, own_lm_head=True).config, target)
    drafting = ready(head_of(layers=(0, 1, 2), own_lm_head=True), target, dtype=torch.float64, device=target.facts.device)
    first_logits(Eagle3Drafter(drafting), target, Features(layers=(0, 1, 2)))


def test_a_target_without_hidden_states_is_refused(folder):
    table = Tabular.build(TabularTargetOptions(vocab=48), BuildTools())
    with pytest.raises(TargetMismatch, match="has none"):
        EagleDrafter.build(EagleOptions(head=str(folder / "eagle")), BuildTools(target=table))
    with pytest.raises(TargetMismatch, match="built after its target"):
        EagleDrafter.build(EagleOptions(head=str(folder / "eagle")), BuildTools())


def test_each_fused_layer_is_the_input_of_that_decoder_layer(target_of):
    target = target_of()
    layers = target._runtime.call.layers
    seen = {}
    handles = [
        layer.register_forward_pre_hook(
            lambda _, args, kwargs, n=n: seen.__setitem__(n, args[0] if args else kwargs["hidden_states"]), with_kwargs=True
        )
        for n, layer in enumerate(layers)
    ]
    handles.append(layers[-1].register_forward_hook(lambda _, __, output: seen.__setitem__(len(layers), output)))
    hidden = target.prefill([[3, 1, 4]], Features(layers=(0, 1, 2, 3))).scored[0].hidden
    for handle in handles:
        handle.remove()
    for n in range(4):
        output = seen[n] if isinstance(seen[n], torch.Tensor) else seen[n][0]
        assert torch.equal(hidden.layers[:, n], output[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_features_enter_the_head_as_the_targets_own_cast_to_its_dtype(target_of, drafter_of, dtype, monkeypatch):
    target = target_of(torch.bfloat16)
    drafter, declared = drafter_of(target, {}, dtype)
    entered, called = [], FusedHead.__call__

    def watched(self, embeddings, hidden, *args, **kwargs):
        entered.append(hidden[0].clone())
        return called(self, embeddings, hidden, *args, **kwargs)

    monkeypatch.setattr(FusedHead, "__call__", watched)
    hidden = target.prefill([[5, 7, 3]], declared.features).scored[0].hidden
    session = drafter.open([DraftStart((5, 7, 3), 9, hidden)])
    session.expand([Frontier(TreeSketch(9, 3), (0,))])
    assert torch.equal(torch.cat(entered), hidden.last.to(dtype))
    assert hidden.last.dtype == torch.bfloat16


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_of_a_lent_lm_head_give_the_targets_logits_or_are_not_lent(family_of, family):
    target, ids = family_of[family], torch.tensor([1, 5, 40, 7])
    lent = shared_rows(target, ids)
    if family == "capped":
        assert lent is None
        return
    torch.manual_seed(1)
    states = torch.randn(3, 32)
    torch.testing.assert_close(states @ lent[0].T, target.head(states)[:, ids], rtol=1e-4, atol=1e-4)
    assert lent[1] is None


@pytest.mark.parametrize("family", FAMILIES)
def test_drafts_are_read_out_by_the_targets_own_rule_scales_and_soft_caps_included(family_of, head_of, family):
    target = family_of[family]
    torch.manual_seed(1)
    states = torch.randn(3, 32) * 5
    whole = lm_head_of(head_of(torch.float32), target, target.facts.device)(states)
    reduced = head_of(torch.float32, draft_vocab_size=20)
    some = lm_head_of(reduced, target, target.facts.device)(states)
    torch.testing.assert_close(whole, target.head(states))
    torch.testing.assert_close(some, target.head(states)[:, reduced.draft_ids], rtol=1e-4, atol=1e-4)


def test_a_heads_own_lm_head_and_embeddings_are_used_and_the_targets_left_alone(target_of, head_of):
    target = target_of(torch.float32)
    torch.manual_seed(1)
    own, table = torch.randn(48, 32), torch.randn(48, 32)
    head = head_of(torch.float32, own_lm_head=True).head
    before = target.embed(torch.arange(48)).clone()
    checkpoint = HeadCheckpoint(head, None, table, own)
    states, ids = torch.randn(2, 32), torch.tensor([3, 47])
    device = target.facts.device
    torch.testing.assert_close(lm_head_of(checkpoint, target, device)(states), states @ own.T)
    assert torch.equal(embeddings(checkpoint, target, torch.float32, device)(ids), table[ids])
    assert torch.equal(target.embed(torch.arange(48)), before)


def test_a_copy_of_the_targets_embeddings_is_not_kept_twice(target_of, head_of):
    target = target_of(torch.float32)
    copy = target.embed(torch.arange(48)).clone()
    embed = embeddings(HeadCheckpoint(head_of().head, None, copy, None), target, torch.float32, target.facts.device)
    copy.zero_()
    assert bool(embed(torch.tensor([3])).any())


def test_a_padded_target_drafts_with_a_head_of_the_unpadded_vocabulary(target_of, head_of):
    target = target_of(torch.float32)
    torch.manual_seed(1)
    table = torch.randn(40, 32)
    checkpoint = HeadCheckpoint(head_of(torch.float32, vocab_size=40).head, None, table, None)
    embed = embeddings(checkpoint, target, torch.float32, target.facts.device)
    assert torch.equal(embed(torch.tensor([39, 45])), table[[39, 0]])
    own = HeadCheckpoint(head_of(torch.float32, vocab_size=40).head, None, None, torch.randn(40, 32))
    ready(own, target, dtype=torch.float32, device=target.facts.device)
    assert lm_head_of(own, target, target.facts.device)(torch.randn(1, 32)).shape == (1, 40)


def test_hidden_states_of_no_tokens_are_no_surprise(target_of, drafter_of):
    target = target_of()
    drafter, declared = drafter_of(target, {})
    hidden = target.prefill([[5]], declared.features).scored[0].hidden
    assert first_shape(drafter, DraftStart((5,), 9, hidden)) == (1, 48)
    tokens_only, _ = drafter_of(target, {"inputs": "token"})
    assert first_shape(tokens_only, DraftStart((5,), 9, HiddenStates())) == (1, 48)


def first_shape(drafter, start):
    return drafter.open([start]).expand([Frontier(TreeSketch(9, 1), (0,))])[0].logits.shape


def test_a_folder_with_a_stray_file_of_weights_is_refused(folder, target_of):
    save_file({"stray.weight": torch.zeros(2)}, folder / "eagle" / "other.safetensors")
    with pytest.raises(CheckpointError, match=r"superfluous: stray\.weight"):
        EagleDrafter.build(EagleOptions(head=str(folder / "eagle")), BuildTools(target=target_of()))


@pytest.mark.parametrize("family", FAMILIES)
def test_heads_draft_for_any_family_and_change_nothing(family_of, head_of, decoder_of, family):
    target = family_of[family]
    plain = decoder_of(target, None, (Dynamic, DynamicOptions()), Match)
    builder = (Dynamic, DynamicOptions(width=3, depth=3, nodes=8))
    features = {"eagle": Features(last=True), "eagle3": Features(layers=(0, 1, 2))}
    for changes in ({}, {"draft_vocab_size": 20}, {"layers": (0, 1, 2), "own_lm_head": True}):
        drafting = ready(head_of(torch.float32, **changes), target, dtype=torch.float32, device=target.facts.device)
        drafter = (Eagle3Drafter if drafting.head.config.layers else EagleDrafter)(drafting)
        declared = DrafterDeclaration(Gives.DISTRIBUTIONS, features[drafting.head.config.kind])
        decoder = decoder_of(target, (drafter, declared), builder, Match)
        for prompt in ([5, 7, 9], [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]):
            (ours,), (theirs,) = (d.generate([prompt], max_new_tokens=12) for d in (decoder, plain))
            assert ours.tokens == theirs.tokens


def test_a_head_with_fewer_positions_than_the_target_is_reported_with_both_numbers(tmp_path, head_of, family_of):
    target = family_of["tied"]
    write_eagle(tmp_path / "eagle", head_of(), max_positions=64)
    fused = head_of(layers=(0, 1, 2), own_lm_head=True, draft_vocab_size=20)
    write_speculators(tmp_path / "eagle3", fused, target="t", max_positions=64)
    for drafter, options in ((EagleDrafter, EagleOptions), (Eagle3Drafter, Eagle3Options)):
        with pytest.warns(SpecdecWarning, match=f"the head has 64 positions and the target {target.facts.max_positions}"):
            drafter.build(options(head=str(tmp_path / drafter.name)), BuildTools(target=target))
