"""Proofs that a decoder is lossless, kept apart by what they can show."""
