"""Hydra heads: one for each of the next tokens, each reading the target's last feature and the tokens drafted so far."""

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from specdec.heads.config import MAX_WIDTH, LayerConfig, VocabularyConfig
from specdec.heads.layers import Attention, CacheUpdate, RmsNorm, SwiGlu
from specdec.heads.medusa import MOST_BLOCKS, MOST_HEADS, ResidualBlock


class HydraConfig(VocabularyConfig):
    """Sizes of Hydra heads. `own_lm_head`: each head has an LM head of its own, as published; else all borrow the target's."""

    kind: Literal["hydra"] = "hydra"
    hidden_size: Annotated[int, Field(ge=1, le=MAX_WIDTH, description="of the target")]
    num_heads: Annotated[int, Field(ge=1, le=MOST_HEADS, description="tokens beyond the next one that are predicted")]
    num_blocks: Annotated[int, Field(ge=1, le=MOST_BLOCKS, description="blocks of a head, the first one included")] = 1
    prefix: Annotated[
        LayerConfig | None, Field(description="a decoder layer over the features of the text so far (Hydra++); null: none")
    ] = None
    embedding_scale: Annotated[float, Field(gt=0, description="multiplies embeddings before the heads")] = 1.0
    feature_scale: Annotated[float, Field(gt=0, description="multiplies features, or the prefix layer's output")] = 1.0
    lm_head_bias: Annotated[bool, Field(description="of LM heads of their own")] = False

    @property
    def layers(self) -> tuple[int, ...]:
        """No layer's inputs are read: the feature is the hidden state after the final norm."""
        return ()

    @property
    def made_for(self) -> tuple[int, int]:
        """Hidden size and vocabulary of its target."""
        return self.hidden_size, self.vocab_size


class WideBlock(nn.Module):
    """V x + c + silu(W x + b) for a feature and the embeddings of `tokens` tokens, side by side."""

    def __init__(self, hidden_size: int, tokens: int) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden_size * (tokens + 1), hidden_size)
        self.res_connection = nn.Linear(hidden_size * (tokens + 1), hidden_size)

    def forward(self, states: Tensor) -> Tensor:
        output: Tensor = self.res_connection(states) + functional.silu(self.linear(states))
        return output


class PrefixLayer(nn.Module):
    """One LLaMA layer with its final norm, over the target's features. *Source: arXiv 2402.05109, section 4 (Hydra++).*"""

    def __init__(self, config: LayerConfig) -> None:
        super().__init__()
        self.input_layernorm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config, config.hidden_size)
        self.post_attention_layernorm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = SwiGlu(config)
        self.norm = RmsNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, states: Tensor, positions: Tensor, mask: Tensor | None, update: CacheUpdate | None) -> Tensor:
        states = states + self.self_attn(self.input_layernorm(states), positions, mask, update)
        output: Tensor = self.norm(states + self.mlp(self.post_attention_layernorm(states)))
        return output


class HydraHead(nn.Module):
    """Head h predicts the token h + 2 after a feature's own from that feature and the h + 1 tokens between.

    The published class repeats one block object behind the first, so that they share weights; here each has its own.
    *Source: arXiv 2402.05109, section 3, and the published code ("grounded" heads).*
    """

    def __init__(self, config: HydraConfig) -> None:
        super().__init__()
        self.config = config
        size = config.hidden_size
        self.prefix = None if config.prefix is None else PrefixLayer(config.prefix)
        self.heads = nn.ModuleList(
            nn.Sequential(WideBlock(size, head + 1), *(ResidualBlock(size, bias=True) for _ in range(config.num_blocks - 1)))
            for head in range(config.num_heads)
        )
        own = [nn.Linear(size, config.output_size, bias=config.lm_head_bias) for _ in range(config.num_heads)]
        self.lm_heads = nn.ModuleList(own) if config.own_lm_head else None

    @property
    def own_lm_heads(self) -> list[nn.Linear]:
        """The LM head of each head; empty where all borrow the target's."""
        return [one for one in self.lm_heads or () if isinstance(one, nn.Linear)]

    def read_features(
        self, features: Tensor, positions: Tensor, *, mask: Tensor | None = None, update: CacheUpdate | None = None
    ) -> Tensor:
        """What all heads read of post-norm features [rows, nodes, hidden]: these, or the prefix layer's output over them.

        positions: [rows or 1, nodes]. mask, update: as of `EagleHead.forward`.
        """
        return features if self.prefix is None else self.prefix(features, positions, mask, update)

    def lm_head_states(self, states: Tensor) -> Tensor:
        """What the LM heads read: the states as they are."""
        return states

    def forward(self, head: int, states: Tensor, embeddings: Tensor) -> Tensor:
        """What the LM head reads [..., hidden].

        states: [..., hidden] of `read_features`. embeddings: [..., head + 1, hidden] of the tokens that follow, the last
        committed one first.
        """
        parts = (states * self.config.feature_scale, (embeddings * self.config.embedding_scale).flatten(-2))
        output: Tensor = self.heads[head](torch.cat(parts, dim=-1))
        return output
