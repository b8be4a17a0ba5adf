"""Drafting with a head on the target's features: what the head borrows, and its session. Shared by the EAGLE drafters."""
