"""Hidden states for drafters, against hooks of the test's own and against transformers' output_hidden_states."""

import pytest
import torch

from specdec.errors import TargetMismatch
from specdec.interfaces.declarations import Features
from specdec.targets.model_call import ModelCall

EXACT = {"rtol": 1e-9, "atol": 1e-9}
KINDS = ["llama", "gpt2", "mixtral", "mistral", "gemma3"]


@torch.no_grad()
def independent(runtime, tokens):
    """Inputs of all layers, the output of the last one, and the post-norm state, by hooks on named modules."""
    model = runtime.call.model
    blocks = model.transformer.h if hasattr(model, "transformer") else model.model.layers
    norm = model.transformer.ln_f if hasattr(model, "transformer") else model.model.norm
    entering, leaving = [], []
    handles = [
        norm.register_forward_hook(lambda _, args, out: leaving.extend([args[0][0], out[0]])),
        *(block.register_forward_pre_hook(lambda _, args: entering.append(args[0][0])) for block in blocks),
    ]
    output = model(input_ids=torch.tensor([tokens]), use_cache=False, output_hidden_states=True)
    for handle in handles:
        handle.remove()
    return torch.stack([*entering, leaving[0]], 1), leaving[1], output.hidden_states


@pytest.mark.parametrize("kind", KINDS)
def test_prompt_and_nodes_carry_the_states_that_independent_hooks_see(kind, make_runtime, prompt, random_tree):
    runtime, facts = make_runtime(kind)
    layers = tuple(range(facts.num_layers + 1))
    tokens = prompt(15)
    state, first = runtime.prefill([tokens, prompt(4)], Features(last=True, layers=layers))
    tree = random_tree(9, 15, seed=3)
    scored = runtime.score(state, [tree, random_tree(2, 4, seed=1)])[0]
    entering, last, recorded = independent(runtime, tokens)
    torch.testing.assert_close(first[0].hidden.layers, entering, **EXACT)
    torch.testing.assert_close(first[0].hidden.last, last, **EXACT)
    for layer in range(facts.num_layers):
        torch.testing.assert_close(first[0].hidden.layers[:, layer], recorded[layer][0], **EXACT)
    torch.testing.assert_close(first[0].hidden.last, recorded[-1][0], **EXACT)
    for node in range(len(tree)):
        entering, last, _ = independent(runtime, [*tokens, tree.tokens[0], *tree.path_tokens(node)])
        torch.testing.assert_close(scored.hidden.layers[node], entering[-1], **EXACT)
        torch.testing.assert_close(scored.hidden.last[node], last[-1], **EXACT)


def test_one_layer_models_give_input_and_output_of_that_layer(make_model, prompt):
    call = ModelCall(make_model("llama", num_hidden_layers=1))
    ids = torch.tensor([prompt(5)])
    hidden = call(ids, None, None, None, Features(last=True, layers=(1, 0))).hidden
    norm = call.model.model.norm
    torch.testing.assert_close(norm(hidden.layers[:, :, 0]), hidden.last, **EXACT)
    torch.testing.assert_close(hidden.layers[:, :, 1], call.embed(ids), **EXACT)


def test_features_that_nobody_asked_for_are_absent(make_runtime, prompt):
    runtime, _ = make_runtime("llama")
    _, scored = runtime.prefill([prompt(3)], Features())
    assert scored[0].hidden.last is None
    assert scored[0].hidden.layers is None
    _, scored = runtime.prefill([prompt(3)], Features(layers=(1,)))
    assert scored[0].hidden.last is None
    assert scored[0].hidden.layers.shape == (3, 1, 32)


@pytest.mark.parametrize("kind", [*KINDS, "gemma2", "granite", "bloom", "qwen3_moe"])
def test_the_borrowed_head_gives_the_models_own_logits_scales_and_caps_included(kind, make_model, prompt):
    call = ModelCall(make_model(kind, attention="eager"))
    output = call(torch.tensor([prompt(6)]), None, None, None, Features(last=True))
    torch.testing.assert_close(call.head(output.hidden.last[0]), output.logits[0], **EXACT)


@pytest.mark.parametrize("kind", ["llama", "gemma2", "gemma3", "granite", "mixtral"])
def test_borrowed_embeddings_are_what_enters_the_first_layer(kind, make_model, prompt):
    call = ModelCall(make_model(kind, attention="eager"))
    ids = torch.tensor([prompt(6)])
    output = call(ids, None, None, None, Features(layers=(0,)))
    torch.testing.assert_close(call.embed(ids[0]), output.hidden.layers[0, :, 0], rtol=1e-6, atol=1e-6)


def test_learned_positions_are_no_part_of_the_embeddings(make_model):
    call = ModelCall(make_model("gpt2"))
    ids = torch.tensor([3, 4, 5])
    assert torch.equal(call.embed(ids), call.model.transformer.wte(ids))


def test_a_head_that_is_not_understood_is_refused_only_when_it_is_borrowed(make_model, prompt):
    model = make_model("llama")
    model.lm_head.register_forward_hook(lambda _, __, logits: logits + 1 if logits.ndim == 3 else logits)
    call = ModelCall(model)
    assert call(torch.tensor([prompt(4)]), None, None, None, Features()).logits.shape == (1, 4, 96)
    with pytest.raises(TargetMismatch, match="lends no head: logits computed from its last hidden state differ"):
        call.head(torch.zeros(1, 32, dtype=torch.float64))


def test_hidden_states_may_be_trained_on_and_logits_may_not_be_written_to(make_runtime, prompt):
    runtime, _ = make_runtime("llama")
    _, scored = runtime.prefill([prompt(5)], Features(last=True, layers=(1,)))
    weight = torch.ones(32, dtype=torch.float64, requires_grad=True)
    ((scored[0].hidden.last * weight).sum() + (scored[0].hidden.layers * weight).sum()).backward()
    assert weight.grad.isfinite().all()
    with pytest.raises(RuntimeError, match=r"[Ii]nplace"):
        scored[0].logits[0, 0] = 0.0


def test_a_model_whose_forward_fails_is_told_so(make_model):
    model = make_model("llama")

    def broken(*_):
        raise IndexError("no such thing")

    model.model.register_forward_pre_hook(broken)
    with pytest.raises(TargetMismatch, match="a forward of LlamaForCausalLM fails: IndexError: no such thing"):
        ModelCall(model)
