"""The EAGLE-1/2 head: features and tokens in, the next feature out."""

import torch
from torch import Tensor, nn

from specdec.heads.config import HeadConfig
from specdec.heads.layers import Attention, CacheUpdate, RmsNorm, SwiGlu


class DecoderLayer(nn.Module):
    """One LLaMA layer without `input_layernorm`: features are normed already. *Source: arXiv 2401.15077, section 4.1.*"""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config, config.hidden_size)
        self.post_attention_layernorm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = SwiGlu(config)

    def forward(self, states: Tensor, positions: Tensor, mask: Tensor | None, update: CacheUpdate | None) -> Tensor:
        states = states + self.self_attn(states, positions, mask, update)
        output: Tensor = states + self.mlp(self.post_attention_layernorm(states))
        return output


class EagleHead(nn.Module):
    """Predicts the target's next post-norm feature; no final norm, so that the target's LM head reads it as it is.

    Embeddings are the target's and not parameters here; so is the LM head, unless the config says that the head has its own
    (`lm_head` over `output_size` tokens). Parameter names are those of published checkpoints.
    *Source: arXiv 2401.15077, section 4.1.*
    """

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.config = config
        parts = int(config.inputs.has_token) + int(config.inputs.has_feature)
        self.fc = nn.Linear(parts * config.hidden_size, config.hidden_size, bias=config.fc_bias)
        self.layers = nn.ModuleList([DecoderLayer(config)])
        own = config.own_lm_head
        self.lm_head = nn.Linear(config.hidden_size, config.output_size, bias=False) if own else None

    def input_projection(self, features: Tensor) -> Tensor:
        """What the first step takes as `hidden`: the target's features as they are."""
        return features

    def forward(
        self,
        embeddings: Tensor,
        hidden: Tensor,
        positions: Tensor,
        *,
        mask: Tensor | None = None,
        update: CacheUpdate | None = None,
    ) -> Tensor:
        """The next features [rows, nodes, hidden]; they are also the next step's `hidden`.

        embeddings, hidden: [rows, nodes, hidden], of the config's `inputs` (unused ones may be anything of that shape).
        positions: [rows or 1, nodes], those of the features. mask: additive [rows or 1, 1, nodes, slots]; None means causal
        among the nodes given. update: see `CacheUpdate`; None where nothing is cached.
        """
        parts = []
        if self.config.inputs.has_token:
            parts.append(embeddings * self.config.embedding_scale)
        if self.config.inputs.has_feature:
            parts.append(hidden * self.config.feature_scale)
        states = self.fc(torch.cat([part.to(parts[0].dtype) for part in parts], dim=-1))
        output: Tensor = self.layers[0](states, positions, mask, update)
        return output

    def lm_head_states(self, hidden: Tensor) -> Tensor:
        """What the LM head reads: the predicted feature itself."""
        return hidden
