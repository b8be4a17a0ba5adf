"""Decoders compared: the same prompts, caps and counting for all, interleaved, with intervals."""
