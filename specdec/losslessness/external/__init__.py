"""Decoders of other engines, of which nothing is known but their answers."""
