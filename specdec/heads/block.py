"""One-pass heads: a block of masks behind the last token is read at once, and gives a row of logits for each depth.

DFlash sees its whole block, JetSpec what stands before; DSpark adds a bias by the token before, so that its rows differ by
parent. *Source: arXiv 2602.06036 (DFlash), arXiv 2606.18394 (JetSpec); DSpark by its published code.*
"""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, model_validator
from torch import Tensor, nn

from specdec.heads.config import MAX_VOCAB, MAX_WIDTH, LayerConfig, VocabularyConfig
from specdec.heads.layers import RmsNorm, SwiGlu
from specdec.nn.grouped_query_attention import grouped_attention
from specdec.nn.rope import inverse_frequencies, rotate

MOST_LAYERS, MOST_ROWS = 64, 128


class BlockConfig(LayerConfig, VocabularyConfig):
    """What a one-pass head is. `layers`: the target's layers whose inputs are its context."""

    kind: Literal["block"] = "block"
    layers: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1, max_length=MOST_LAYERS)]
    num_layers: Annotated[int, Field(ge=1, le=MOST_LAYERS, description="decoder layers of the head")] = 1
    block_size: Annotated[int, Field(ge=2, le=MOST_ROWS, description="rows of a pass: the last token and the masks")]
    mask_token_id: Annotated[int, Field(ge=0, le=MAX_VOCAB, description="the token whose embedding stands for a mask")]
    causal: Annotated[bool, Field(description="a row sees the block up to itself (JetSpec), not all of it (DFlash)")] = False
    from_anchor: Annotated[bool, Field(description="the last token's own row predicts the next token")] = False
    qk_norm: Annotated[bool, Field(description="queries and keys are normed by head, as in Qwen3")] = True
    markov_rank: Annotated[
        int | None, Field(ge=1, le=MAX_WIDTH, description="of DSpark's bias by the token before; null: none")
    ] = None
    target_hidden_size: Annotated[int | None, Field(ge=1, le=MAX_WIDTH, description="width of the target, if another")] = None

    @property
    def made_for(self) -> tuple[int, int]:
        """Hidden size and vocabulary of its target."""
        return (self.hidden_size if self.target_hidden_size is None else self.target_hidden_size), self.vocab_size

    @property
    def depths(self) -> int:
        """Levels of a draft, each with a row of its own."""
        return self.block_size if self.from_anchor else self.block_size - 1

    @model_validator(mode="after")
    def _is_possible(self) -> "BlockConfig":
        if self.mask_token_id >= self.vocab_size:
            raise ValueError(f"mask_token_id: {self.mask_token_id} of {self.vocab_size} tokens")
        if self.own_lm_head:
            raise ValueError("own_lm_head: a one-pass head shares its target's LM head")
        return self


class KeysValues(NamedTuple):
    """Of one layer, each [rows, kv heads, slots, dim]; keys are rotated."""

    keys: Tensor
    values: Tensor


class BlockAttention(nn.Module):
    """Queries of the block; keys and values of context rows and block rows, by the same maps."""

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        size = config.hidden_size
        self.q_proj = nn.Linear(size, self.heads * self.head_dim, bias=config.qkv_bias)
        self.k_proj = nn.Linear(size, self.kv_heads * self.head_dim, bias=config.qkv_bias)
        self.v_proj = nn.Linear(size, self.kv_heads * self.head_dim, bias=config.qkv_bias)
        self.o_proj = nn.Linear(self.heads * self.head_dim, size, bias=False)
        self.q_norm = RmsNorm(self.head_dim, config.rms_norm_eps) if config.qk_norm else None
        self.k_norm = RmsNorm(self.head_dim, config.rms_norm_eps) if config.qk_norm else None

    def keys_values(self, states: Tensor, positions: Tensor, frequencies: Tensor) -> KeysValues:
        """Of states [rows, slots, hidden] at positions [rows or 1, slots]."""
        keys = self._by_head(self.k_proj(states), self.k_norm)
        return KeysValues(rotate(keys, positions, frequencies), self._by_head(self.v_proj(states), None))

    def query(self, states: Tensor, positions: Tensor, frequencies: Tensor) -> Tensor:
        """[rows, heads, slots, dim], rotated."""
        return rotate(self._by_head(self.q_proj(states), self.q_norm), positions, frequencies)

    def mix(self, query: Tensor, seen: KeysValues, mask: Tensor) -> Tensor:
        """[rows, slots, hidden]; mask additive [rows or 1, 1, slots, seen slots]."""
        mixed = grouped_attention(query, seen.keys, seen.values, mask)
        output: Tensor = self.o_proj(mixed.transpose(1, 2).reshape(len(query), query.shape[2], -1))
        return output

    def _by_head(self, states: Tensor, norm: RmsNorm | None) -> Tensor:
        split = states.view(*states.shape[:2], -1, self.head_dim)
        return (split if norm is None else norm(split)).transpose(1, 2)


class BlockLayer(nn.Module):
    """One decoder layer over a block."""

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        self.input_layernorm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = BlockAttention(config)
        self.post_attention_layernorm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = SwiGlu(config)

    def forward(
        self, states: Tensor, positions: Tensor, frequencies: Tensor, mask: Tensor, seen: Callable[[KeysValues], KeysValues]
    ) -> Tensor:
        """[rows, block, hidden] of states of that shape. seen: from the block's own keys and values to all attended to."""
        read = self.input_layernorm(states)
        own = self.self_attn.keys_values(read, positions, frequencies)
        query = self.self_attn.query(read, positions, frequencies)
        states = states + self.self_attn.mix(query, seen(own), mask)
        output: Tensor = states + self.mlp(self.post_attention_layernorm(states))
        return output


class MarkovBias(nn.Module):
    """W2 W1[token before], added to a row of logits (DSpark's vanilla form)."""

    def __init__(self, config: BlockConfig, rank: int) -> None:
        super().__init__()
        self.markov_w1 = nn.Embedding(config.vocab_size, rank)
        self.markov_w2 = nn.Linear(rank, config.output_size, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """[tokens, drafts] of tokens [tokens]."""
        bias: Tensor = self.markov_w2(self.markov_w1(tokens))
        return bias


class BlockHead(nn.Module):
    """Context rows are hidden_norm(fc(layer inputs)), the same for all layers; the block runs through the layers.

    Parameter names are those of published checkpoints.
    """

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        self.config = config
        width = config.made_for[0]
        self.fc = nn.Linear(len(config.layers) * width, config.hidden_size, bias=False)
        self.hidden_norm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.layers = nn.ModuleList(BlockLayer(config) for _ in range(config.num_layers))
        self.norm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.markov_head = None if config.markov_rank is None else MarkovBias(config, config.markov_rank)
        frequencies = inverse_frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
        self.register_buffer("frequencies", frequencies, persistent=False)
        self.frequencies: Tensor

    def context(self, features: Tensor) -> Tensor:
        """[rows, tokens, hidden] of layer inputs [rows, tokens, layers, target hidden]."""
        rows: Tensor = self.hidden_norm(self.fc(features.flatten(2)))
        return rows

    @property
    def block_layers(self) -> list[BlockLayer]:
        """The decoder layers, in order."""
        return [layer for layer in self.layers if isinstance(layer, BlockLayer)]

    def context_keys_values(self, context: Tensor, positions: Tensor) -> list[KeysValues]:
        """By layer, of context rows [rows, tokens, hidden] at positions [rows or 1, tokens]."""
        return [layer.self_attn.keys_values(context, positions, self.frequencies) for layer in self.block_layers]

    def lm_head_states(self, hidden: Tensor) -> Tensor:
        """What the LM head reads."""
        normed: Tensor = self.norm(hidden)
        return normed

    def forward(self, embedded: Tensor, positions: Tensor, mask: Tensor, seen: "Seen") -> Tensor:
        """[rows, block, hidden] before `norm`, of embeddings [rows, block, hidden] of the last token and of masks.

        Args:
            embedded: of the block.
            positions: [rows or 1, block].
            mask: additive [rows or 1, 1, block, slots], slots in the order in which `seen` gives them.
            seen: (layer, the block's own keys and values) -> all that the layer attends to.
        """
        states = embedded
        for number, layer in enumerate(self.block_layers):
            states = layer(states, positions, self.frequencies, mask, partial(seen, number))
        return states


Seen = Callable[[int, KeysValues], KeysValues]
