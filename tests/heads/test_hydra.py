import math

import pytest
import torch

from specdec.heads.config import LayerConfig
from specdec.heads.hydra import HydraConfig, HydraHead

HIDDEN, VOCAB = 4, 7
LAYER = LayerConfig(hidden_size=HIDDEN, intermediate_size=5, num_attention_heads=2, num_key_value_heads=1, head_dim=2)


def seeded(dtype, **changes) -> HydraHead:
    sizes = {"hidden_size": HIDDEN, "vocab_size": VOCAB, "num_heads": 3, "num_blocks": 2, "own_lm_head": True}
    head = HydraHead(HydraConfig(**{**sizes, "lm_head_bias": True, **changes}))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.5)
    return head.to(dtype)


def mapped(weight, states, bias=None) -> list[float]:
    rows = [sum(w * x for w, x in zip(line, states, strict=True)) for line in weight]
    return rows if bias is None else [row + b for row, b in zip(rows, bias, strict=True)]


def silu(value: float) -> float:
    return value / (1 + math.exp(-value))


def normed(weight, states) -> list[float]:
    scale = 1 / math.sqrt(sum(x * x for x in states) / len(states) + LAYER.rms_norm_eps)
    return [w * x * scale for w, x in zip(weight, states, strict=True)]


def turned(states, position) -> list[float]:
    """One attention head of two numbers, turned by its position; the only frequency is 1."""
    first, second = states
    cos, sin = math.cos(position), math.sin(position)
    return [first * cos - second * sin, second * cos + first * sin]


def prefixed(tensors, features) -> list[list[float]]:
    """The prefix layer at every feature: attention over all features up to it, SwiGLU, norm."""
    read = [normed(tensors["prefix.input_layernorm.weight"], feature) for feature in features]
    names = {name: tensors[f"prefix.self_attn.{name}_proj.weight"] for name in "qkvo"}
    keys = [turned(mapped(names["k"], one), place) for place, one in enumerate(read)]
    values = [mapped(names["v"], one) for one in read]
    outputs = []
    for place, (feature, one) in enumerate(zip(features, read, strict=True)):
        query, mixed = mapped(names["q"], one), []
        for head in range(2):
            asked = turned(query[2 * head : 2 * head + 2], place)
            scores = [math.exp(sum(a * b for a, b in zip(asked, key, strict=True)) / math.sqrt(2)) for key in keys[: place + 1]]
            total = sum(scores)
            mixed += [sum(s * v[i] for s, v in zip(scores, values[: place + 1], strict=True)) / total for i in range(2)]
        states = [x + y for x, y in zip(feature, mapped(names["o"], mixed), strict=True)]
        inner = normed(tensors["prefix.post_attention_layernorm.weight"], states)
        gate, up = (mapped(tensors[f"prefix.mlp.{name}_proj.weight"], inner) for name in ("gate", "up"))
        down = mapped(tensors["prefix.mlp.down_proj.weight"], [silu(g) * u for g, u in zip(gate, up, strict=True)])
        outputs.append(normed(tensors["prefix.norm.weight"], [x + y for x, y in zip(states, down, strict=True)]))
    return outputs


def by_hand(head, features, embeddings, number) -> list[float]:
    """Logits of one head after a text's last feature and the tokens that follow, in plain loops over numbers."""
    tensors = {name: tensor.double().tolist() for name, tensor in head.state_dict().items()}
    config = head.config
    last = (features if config.prefix is None else prefixed(tensors, features))[-1]
    states = [x * config.feature_scale for x in last]
    states += [x * config.embedding_scale for embedding in embeddings[: number + 1] for x in embedding]
    for block in range(config.num_blocks):
        at = f"heads.{number}.{block}"
        inner = mapped(tensors[f"{at}.linear.weight"], states, tensors[f"{at}.linear.bias"])
        kept = states
        if block == 0:
            kept = mapped(tensors[f"{at}.res_connection.weight"], states, tensors[f"{at}.res_connection.bias"])
        states = [x + silu(y) for x, y in zip(kept, inner, strict=True)]
    return mapped(tensors[f"lm_heads.{number}.weight"], states, tensors.get(f"lm_heads.{number}.bias"))


@pytest.mark.parametrize(("dtype", "relative"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
@pytest.mark.parametrize("changes", [{}, {"prefix": LAYER}, {"num_blocks": 1, "embedding_scale": 3.0, "feature_scale": 0.5}])
def test_every_row_is_that_of_plain_loops_over_numbers(dtype, relative, changes):
    head = seeded(dtype, **changes)
    generator = torch.Generator().manual_seed(1)
    features, embeddings = (torch.randn(5, HIDDEN, generator=generator, dtype=torch.float64).to(dtype) for _ in range(2))
    for number in range(head.config.num_heads):
        with torch.no_grad():
            read = head.read_features(features[None], torch.arange(5)[None])[0, -1]
            ours = head.own_lm_heads[number](head(number, read, embeddings[: number + 1])).double()
        numbers = by_hand(head, features.double().tolist(), embeddings.double().tolist(), number)
        expected = torch.tensor(numbers, dtype=torch.float64)
        assert float((ours - expected).abs().max() / expected.abs().max()) < relative
