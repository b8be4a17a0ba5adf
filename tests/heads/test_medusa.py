import math

import pytest
import torch

from specdec.heads.medusa import MedusaConfig, MedusaHead

HIDDEN, VOCAB = 6, 9


def seeded(dtype, **changes) -> MedusaHead:
    head = MedusaHead(
        MedusaConfig(**{"hidden_size": HIDDEN, "vocab_size": VOCAB, "num_heads": 3, "own_lm_head": True, **changes})
    )
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.4)
    return head.to(dtype)


def by_hand(head, feature) -> list[list[float]]:
    """The logits of every head, in plain loops over numbers: block by block x + silu(W x + b), then the head's own matrix."""
    tensors = {name: tensor.double().tolist() for name, tensor in head.state_dict().items()}
    rows = []
    for number in range(head.config.num_heads):
        states = feature.double().tolist()
        for block in range(head.config.num_blocks):
            weight = tensors[f"heads.{number}.{block}.linear.weight"]
            bias = tensors.get(f"heads.{number}.{block}.linear.bias", [0.0] * HIDDEN)
            inner = [sum(w * x for w, x in zip(line, states, strict=True)) + b for line, b in zip(weight, bias, strict=True)]
            states = [x + value / (1 + math.exp(-value)) for x, value in zip(states, inner, strict=True)]
        rows.append([sum(w * x for w, x in zip(line, states, strict=True)) for line in tensors[f"lm_heads.{number}.weight"]])
    return rows


@pytest.mark.parametrize(("dtype", "relative"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
@pytest.mark.parametrize("changes", [{}, {"num_blocks": 2}, {"bias": False, "num_heads": 1}])
def test_every_row_is_that_of_plain_loops_over_numbers(dtype, relative, changes):
    head = seeded(dtype, **changes)
    feature = torch.randn(HIDDEN, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    with torch.no_grad():
        states = head(feature.to(dtype))
        ours = torch.stack([one(state) for one, state in zip(head.own_lm_heads, states, strict=True)])
    expected = torch.tensor(by_hand(head, feature.to(dtype)), dtype=torch.float64)
    assert float((ours.double() - expected).abs().max() / expected.abs().max()) < relative


def test_a_new_head_gives_the_feature_itself():
    features = torch.randn(4, HIDDEN)
    states = MedusaHead(MedusaConfig(hidden_size=HIDDEN, vocab_size=VOCAB, num_heads=2))(features)
    assert all(torch.equal(state, features) for state in states)


def test_only_the_residual_blocks_are_parameters_of_heads_that_borrow_the_lm_head():
    sizes = {"hidden_size": 576, "vocab_size": 49152, "num_heads": 4}
    with torch.device("meta"):
        borrowed = MedusaHead(MedusaConfig(**sizes, draft_vocab_size=8192))
        own = MedusaHead(MedusaConfig(**sizes, own_lm_head=True))
    assert sum(p.numel() for p in borrowed.parameters()) == 4 * (576 * 576 + 576)
    assert sum(p.numel() for p in own.parameters()) == 4 * (576 * 576 + 576 + 49152 * 576)
