"""The learning rate over a run."""

import math


def learning_rate_share(progress: float, warmup: float, final_share: float) -> float:
    """Share of the peak at `progress` in [0, 1]: linear up over `warmup`, then a cosine down to `final_share`."""
    progress = min(max(progress, 0.0), 1.0)
    if progress < warmup:
        return progress / warmup
    rest = 0.0 if warmup >= 1 else (progress - warmup) / (1 - warmup)
    return final_share + (1 - final_share) * 0.5 * (1 + math.cos(math.pi * rest))
