"""An empirical check at load: does the model score a small tree as it scores its paths one by one?

No flag tells which models break under an explicit mask (ALiBi ones do), so that a few short forwards have to.
"""

import torch
from torch import Tensor

from specdec.errors import TargetMismatch
from specdec.interfaces.declarations import Features
from specdec.targets.capability import has_experts
from specdec.targets.model_call import FORWARD_FAULTS
from specdec.targets.probing import TOLERANCE, ProbedRuntime, RuntimeT, example_tokens, logit_distance
from specdec.trees.draft_tree import DraftTree, Draw, TreeSketch

SHORT_PREFIX = 8
LONGEST_WINDOW = 512
"""Windows longer than this are not reached by the probe."""

TEXTS = 3
"""That are tried where one of them may show a near-tie."""

BRANCHING = (-1, 0, 0, 1, 1, 2, 4)
CHAIN = (-1, 0, 1, 2)


def probed(runtime: RuntimeT) -> RuntimeT:
    """The runtime with what it was seen to be able to do. Raises TargetMismatch if even chains come out wrong."""
    chains = runtime
    if runtime.limits.no_trees_because is None:
        fault = tree_fault(runtime, BRANCHING)
        if fault is None:
            return runtime
        chains = runtime.chains_only(fault)
    chain_fault = tree_fault(chains, CHAIN)
    if chain_fault is not None:
        raise TargetMismatch(
            f"{type(runtime.call.model).__name__} does not reproduce its own logits with a cache: {chain_fault}; "
            "a decoder of a model that transformers' generate runs with use_cache would work"
        )
    return chains


def tree_fault(runtime: ProbedRuntime, parents: tuple[int, ...]) -> str | None:
    """What went wrong when this tree was scored; None if nothing did.

    In half precision, a near-tie of a mixture's router moves a node far, and proves nothing: but it does so in one text, and
    what breaks a mask moves the same node in every text. Other models have no such excuse.
    """
    ties = runtime.call.dtype not in (torch.float32, torch.float64) and has_experts(runtime.call.config)
    worst: list[float] = []
    for text in range(TEXTS if ties else 1):
        found = _distances(runtime, parents, text)
        if isinstance(found, str):
            return found
        worst = [min(pair) for pair in zip(worst or found, found, strict=True)]
        if max(worst) <= TOLERANCE[runtime.call.dtype]:
            return None
    return f"its logits on a small tree differ from those on its paths by {max(worst):.1g} of their spread"


def _distances(runtime: ProbedRuntime, parents: tuple[int, ...], text: int) -> list[float] | str:
    """At the prompt's end, after a commit, and at the nodes of every branch; or how the forward fails."""
    prefix = example_tokens(_prefix_length(runtime), runtime.call.vocab_size, 3 + 10 * text)
    tokens = example_tokens(len(parents), runtime.call.vocab_size, 11 + 10 * text)
    tree = _tree(parents, tokens, len(prefix))
    try:
        state, first = runtime.prefill([prefix], Features())
        scored = runtime.score(state, [tree])[0].logits
        path = tree.path(len(tree) - 1)
        runtime.commit(state, [path])
        root = _tree((-1,), tokens[-1:], len(prefix) + 1 + len(path))
        after = runtime.score(state, [root])[0].logits
    except torch.OutOfMemoryError:
        raise
    except FORWARD_FAULTS as error:
        return f"its forward fails with {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    leaves = [node for node in range(len(tree)) if not tree.children[node]]
    branches = [[0, *tree.path(leaf)] for leaf in leaves]
    plain = _plain(runtime, [[*prefix, *(tokens[node] for node in branch), tokens[-1]] for branch in branches])
    distances = [logit_distance(plain[0][len(prefix) - 1], first[0].logits[0]), logit_distance(plain[-1][-1], after[0])]
    for branch, logits in zip(branches, plain, strict=True):
        distances += [logit_distance(logits[len(prefix) + depth], scored[node]) for depth, node in enumerate(branch)]
    return distances


def _prefix_length(runtime: ProbedRuntime) -> int:
    """Beyond the sliding window where that is short, within the context."""
    window, limit = runtime.masks.longest_window, runtime.limits.max_positions
    wanted = window + 8 if window is not None and window < LONGEST_WINDOW else SHORT_PREFIX
    return wanted if limit is None else max(1, min(wanted, limit - len(BRANCHING)))


def _tree(parents: tuple[int, ...], tokens: list[int], position: int) -> DraftTree:
    sketch = TreeSketch(tokens[0], position)
    for parent, token in zip(parents[1:], tokens[1:], strict=True):
        sketch.add(parent, token)
    return sketch.freeze(Draw.DETERMINISTIC)


def _plain(runtime: ProbedRuntime, sequences: list[list[int]]) -> list[Tensor]:
    """[tokens, vocab] by sequence from one plain forward of the unmodified model, without cache, mask or positions of ours.

    Shorter sequences are padded on the right, where a causal model does not look.
    """
    width = max(map(len, sequences))
    padded = [[*sequence, *[0] * (width - len(sequence))] for sequence in sequences]
    with torch.no_grad():
        logits = runtime.call.model(input_ids=torch.tensor(padded, device=runtime.call.device), use_cache=False).logits
    return [row[: len(sequence)] for row, sequence in zip(logits, sequences, strict=True)]
