"""Whether weights that were made for a model of some sizes serve another one."""

PADDING = 1024
"""Vocabularies of one tokenizer differ between checkpoints by less than this."""


def size_fault(made_for: tuple[int, int], hidden_size: int | None, vocab_size: int | None, target: str) -> str | None:
    """Why weights for a model of this width and vocabulary do not serve `target`; None: they may. None of a size: not known.

    A target may be padded beyond what the weights know, but not lack tokens that they name.
    """
    width, vocabulary = made_for
    if hidden_size is not None and width != hidden_size:
        return f"reads hidden states {width} wide; those of {target} are {hidden_size} wide"
    if vocab_size is not None and not 0 <= vocab_size - vocabulary < PADDING:
        return f"is made for a vocabulary of {vocabulary} tokens; {target} has {vocab_size}"
    return None
