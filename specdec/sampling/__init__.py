"""From logits to tokens: parameters, distributions, warping, random draws, and their enumeration."""
