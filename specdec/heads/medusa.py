"""Medusa heads: one row of logits for each of the next tokens, all from the target's last feature alone."""

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from specdec.heads.config import MAX_WIDTH, VocabularyConfig

MOST_HEADS, MOST_BLOCKS = 64, 64


class MedusaConfig(VocabularyConfig):
    """Sizes of Medusa heads. `own_lm_head`: each head has an LM head of its own, as published; else all borrow the target's."""

    kind: Literal["medusa"] = "medusa"
    hidden_size: Annotated[int, Field(ge=1, le=MAX_WIDTH, description="of the target")]
    num_heads: Annotated[int, Field(ge=1, le=MOST_HEADS, description="tokens beyond the next one that are predicted")]
    num_blocks: Annotated[int, Field(ge=1, le=MOST_BLOCKS, description="residual blocks of a head")] = 1
    bias: Annotated[bool, Field(description="of the residual blocks")] = True

    @property
    def layers(self) -> tuple[int, ...]:
        """No layer's inputs are read: the feature is the hidden state after the final norm."""
        return ()

    @property
    def made_for(self) -> tuple[int, int]:
        """Hidden size and vocabulary of its target."""
        return self.hidden_size, self.vocab_size


class ResidualBlock(nn.Module):
    """x + silu(W x + b); with W and b of zeros, as it is made, the identity."""

    def __init__(self, hidden_size: int, *, bias: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden_size, hidden_size, bias=bias)
        nn.init.zeros_(self.linear.weight)
        if bias:
            nn.init.zeros_(self.linear.bias)

    def forward(self, states: Tensor) -> Tensor:
        return states + functional.silu(self.linear(states))


class MedusaHead(nn.Module):
    """Head h predicts the token h + 2 after a feature's own, whatever stands between: h + 1 after what the LM head predicts.

    The published class repeats one block object where a head has several, so that they share weights; here each has its own.
    *Source: arXiv 2401.10774, section 2.1, and the published code.*
    """

    def __init__(self, config: MedusaConfig) -> None:
        super().__init__()
        self.config = config
        self.heads = nn.ModuleList(
            nn.Sequential(*(ResidualBlock(config.hidden_size, bias=config.bias) for _ in range(config.num_blocks)))
            for _ in range(config.num_heads)
        )
        own = [nn.Linear(config.hidden_size, config.output_size, bias=False) for _ in range(config.num_heads)]
        self.lm_heads = nn.ModuleList(own) if config.own_lm_head else None

    @property
    def own_lm_heads(self) -> list[nn.Linear]:
        """The LM head of each head; empty where all borrow the target's."""
        return [one for one in self.lm_heads or () if isinstance(one, nn.Linear)]

    def lm_head_states(self, states: Tensor) -> Tensor:
        """What the LM heads read: the states as they are."""
        return states

    def forward(self, features: Tensor) -> Tensor:
        """What the LM heads read [heads, ..., hidden], from post-norm features [..., hidden]."""
        return torch.stack([head(features) for head in self.heads])
