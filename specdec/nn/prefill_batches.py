"""Which neighbouring prompts share a forward: padding short prompts to a long one can cost more than a forward of their own."""

from collections.abc import Sequence

FORWARD_IN_TOKENS = {"cpu": 24}
"""What a forward costs beside its tokens, in tokens, by kind of device: on a CPU it is small beside the arithmetic."""

ELSEWHERE = 2048
"""The same on accelerators, which are idle for most of a forward over few tokens."""


def prompt_batches(lengths: Sequence[int], chunk: int, device: str) -> list[range]:
    """The cheapest partition of consecutive prompts of these lengths (each at least 0) into batches.

    A batch costs its longest prompt times its prompts, and one forward more for each `chunk` tokens of the longest.
    """
    forward = FORWARD_IN_TOKENS.get(device, ELSEWHERE)
    best, cut = [0], [0]
    for end in range(1, len(lengths) + 1):
        longest, options = 0, []
        for start in range(end - 1, -1, -1):
            longest = max(longest, lengths[start])
            options.append((best[start] + longest * (end - start) - forward * (-longest // chunk), start))
        cost, start = min(options)
        best.append(cost)
        cut.append(start)
    batches, end = [], len(lengths)
    while end:
        batches.append(range(cut[end], end))
        end = cut[end]
    return batches[::-1]
