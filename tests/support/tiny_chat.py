"""A random llama that reads and writes bytes, with a chat template: a whole chat model in milliseconds."""

import torch
from tiny_tokenizers import bytes_tokenizer
from transformers import LlamaConfig, LlamaForCausalLM


def save_tiny_chat(folder, *, layers=2, hidden=32, positions=512, seed=5):
    """Write model and tokenizer into a folder; returns it."""
    torch.manual_seed(seed)
    tokenizer = bytes_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=positions,
        initializer_range=0.25,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
