"""The sampled proof: tokens of a real model against its own probabilities."""
