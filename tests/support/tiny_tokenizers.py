"""Tokenizers of single bytes with special tokens and chat templates, made in a moment."""

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

SPECIAL = ("<s>", "</s>", "<|im_start|>", "<|im_end|>", "<think>", "</think>")

HEADER = "{{ '<|im_start|>' + m['role'] + '\n' }}"
CHATML = (
    "{% for m in messages %}" + HEADER + "{{ m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
DROPS_THOUGHTS = (
    "{% set last = namespace(user=0) %}{% for m in messages %}{% if m['role'] == 'user' %}{% set last.user = loop.index0 %}"
    "{% endif %}{% endfor %}{% for m in messages %}" + HEADER + "{% if m['role'] == 'assistant' %}"
    "{% set words = m['content'].split('</think>')[-1].lstrip('\n') %}"
    "{% set before = m['content'].split('</think>')[0].split('<think>')[-1].strip('\n') %}"
    "{% set thoughts = before if '</think>' in m['content'] else '' %}"
    "{% if loop.index0 > last.user %}{{ '<think>\n' + thoughts + '\n</think>\n\n' + words }}{% else %}{{ words }}{% endif %}"
    "{% else %}{{ m['content'] }}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% if enable_thinking is defined and not enable_thinking %}{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}"
)
"""As Qwen3's: thoughts of turns before the last question go, and the last answer gets empty ones where it has none."""


def bytes_tokenizer(template=CHATML, *, special=SPECIAL, plain=(), adds="", eos="<|im_end|>"):
    """One id a byte, then the special tokens, then added tokens that are not special.

    Args:
        template: The chat template, or None.
        special: Special tokens.
        plain: Added tokens that are part of what is said.
        adds: What the tokenizer writes around a text by itself, such as "<s> $A </s>".
        eos: The token that ends a text.
    """
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in plain])
    if adds:
        used = [(text, tokenizer.token_to_id(text)) for text in special if text in adds]
        tokenizer.post_processor = processors.TemplateProcessing(single=adds, special_tokens=used)
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token=eos)
    made.chat_template = template
    return made
