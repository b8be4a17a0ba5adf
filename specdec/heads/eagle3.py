"""The EAGLE-3 head: fused low, middle and high features, its own recurrence before the norm, its own LM head."""

import torch
from torch import Tensor, nn

from specdec.errors import CheckpointError
from specdec.heads.config import HeadConfig
from specdec.heads.layers import Attention, CacheUpdate, RmsNorm, SwiGlu


class MidLayer(nn.Module):
    """One layer whose attention reads the normed embedding and the normed hidden state side by side, 2H wide.

    The residual is the hidden state before its norm, unless the config says otherwise (some heads of the speculators format).
    *Source: arXiv 2503.01840, section 3; no second projection as in its figure 5, as in the published code.*
    """

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.input_layernorm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.hidden_norm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config, 2 * config.hidden_size)
        self.post_attention_layernorm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = SwiGlu(config)
        self.norm_before_residual = config.norm_before_residual

    def forward(
        self, embeddings: Tensor, hidden: Tensor, positions: Tensor, mask: Tensor | None, update: CacheUpdate | None
    ) -> Tensor:
        normed = self.hidden_norm(hidden)
        both = torch.cat((self.input_layernorm(embeddings), normed), dim=-1)
        states = (normed if self.norm_before_residual else hidden) + self.self_attn(both, positions, mask, update)
        output: Tensor = states + self.mlp(self.post_attention_layernorm(states))
        return output


class EagleHead3(nn.Module):
    """Predicts tokens directly. `input_projection` fuses the target's layers once; the state before `norm` feeds the next step.

    `lm_head` is the head's own, over `draft_vocab_size` tokens. Parameter names are those of published checkpoints.
    *Source: arXiv 2503.01840.*
    """

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        if not config.layers:
            raise CheckpointError("an EAGLE-3 head needs the layers that it fuses")
        self.config = config
        width = config.hidden_size if config.target_hidden_size is None else config.target_hidden_size
        self.fc = nn.Linear(len(config.layers) * width, config.hidden_size, bias=False)
        self.midlayer = MidLayer(config)
        self.norm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.output_size, bias=False)

    def input_projection(self, features: Tensor) -> Tensor:
        """`hidden` of the first step, from layer inputs [rows, nodes, layers, hidden] or [rows, nodes, layers * hidden]."""
        joined = features.flatten(2) if features.dim() == 4 else features
        fused: Tensor = self.fc(joined * self.config.feature_scale)
        return fused

    def forward(
        self,
        embeddings: Tensor,
        hidden: Tensor,
        positions: Tensor,
        *,
        mask: Tensor | None = None,
        update: CacheUpdate | None = None,
    ) -> Tensor:
        """The next hidden state, before `norm`; arguments as in `EagleHead.forward`."""
        output: Tensor = self.midlayer(embeddings * self.config.embedding_scale, hidden, positions, mask, update)
        return output

    def lm_head_states(self, hidden: Tensor) -> Tensor:
        """What the LM head reads."""
        normed: Tensor = self.norm(hidden)
        return normed
