"""Milliseconds of `verify` for trees of 24 drafted nodes over 49,152 tokens at T = 1, beside a plain token's forward.

    python tests/bars/verification_cost.py

Target and draft rows are prepared: logits as spread as a language model's, the draft's like the target's but for some noise.
Rows of p are computed within the time, as in a decode step. The bar: at most 0.4 of a plain forward for every rule but
`optimal_transport` (here from a draft cut to ten tokens) and `gbv`.
"""

import argparse
import time
from dataclasses import dataclass
from statistics import median

import torch

from specdec.compose import load
from specdec.decoding.requests import Request
from specdec.interfaces.parts import PartOptions, TreeBuilder, Verifier, build_part
from specdec.interfaces.proposals import Budget, DraftProbs
from specdec.nn.placement import keep_freed_memory
from specdec.sampling.distribution import draft_probs
from specdec.sampling.logits_warper import LogitsWarper
from specdec.sampling.params import SamplingParams, TruncationParams
from specdec.sampling.rng import seeded
from specdec.tree_builders.chain import Chain, ChainOptions
from specdec.tree_builders.chains import Chains, ChainsOptions
from specdec.tree_builders.pair import Pair, PairOptions
from specdec.tree_builders.sampled import Sampled, SampledOptions
from specdec.tree_builders.top_then_one import TopThenOne, TopThenOneOptions
from specdec.trees.draft_tree import DraftTree
from specdec.verifiers.block import Block
from specdec.verifiers.chain import Chain as ChainRule
from specdec.verifiers.gbv import Gbv
from specdec.verifiers.greedy_last import GreedyLast
from specdec.verifiers.k_seq import KSeq
from specdec.verifiers.match import Match
from specdec.verifiers.multi_round import MultiRound
from specdec.verifiers.optimal_transport import OptimalTransport
from specdec.verifiers.point_mass import PointMass
from specdec.verifiers.spec_hub import SpecHub
from specdec.verifiers.traversal import Traversal

VOCAB, NODES = 49_152, 24
SPREAD, AGREEMENT = 3.0, 0.9
SAMPLING = SamplingParams(temperature=1.0)
WIDE = [(0,), (1,), (2,), (3,), *((a, b) for a in range(4) for b in range(2)), *((a, b, 0) for a in range(4) for b in range(2)),
        (0, 0, 0, 0), (0, 0, 0, 0, 0), (1, 0, 0, 0), (1, 0, 0, 0, 0)]  # fmt: skip
"""24 nodes: four children, two each, and a few deep ones."""


@dataclass(frozen=True)
class Trial:
    """A rule with the drafts that it is timed on. top_k: of the draft."""

    verifier: type[Verifier]
    builder: type[TreeBuilder]
    options: PartOptions
    top_k: int | None = None


IID, WOR = SampledOptions(paths=WIDE, replacement=True), SampledOptions(paths=WIDE)
TRIALS = {
    "match": Trial(Match, Sampled, WOR),
    "point_mass": Trial(PointMass, Sampled, WOR),
    "chain": Trial(ChainRule, Chain, ChainOptions(length=NODES, draw="sampled")),
    "block": Trial(Block, Chain, ChainOptions(length=NODES, draw="sampled")),
    "multi_round": Trial(MultiRound, Sampled, WOR),
    "multi_round, i.i.d.": Trial(MultiRound, Sampled, IID),
    "traversal": Trial(Traversal, Sampled, WOR),
    "traversal, i.i.d.": Trial(Traversal, Sampled, IID),
    "k_seq": Trial(KSeq, Sampled, IID),
    "greedy_last": Trial(GreedyLast, TopThenOne, TopThenOneOptions(paths=WIDE)),
    "spec_hub": Trial(SpecHub, Pair, PairOptions(depth=4)),
    "gbv": Trial(Gbv, Chains, ChainsOptions(count=4, length=6)),
    "optimal_transport": Trial(OptimalTransport, Sampled, IID, top_k=10),
}


def plain_milliseconds(tokens: int) -> float:
    """Median forward of one token of the embedded model, as plain decoding runs it."""
    decoder = load("plain")
    (answer,) = decoder.generate([Request(tuple(range(50, 178)), max_new_tokens=tokens, seed=0)])
    return 1000 * median(record.seconds["score"] for record in answer.records[3:])


def drafted(trial: Trial, seed: int) -> tuple[DraftTree, torch.Tensor]:
    """A drawn tree and the target's logits at its nodes."""
    generator = torch.Generator().manual_seed(seed)
    rows: list[torch.Tensor] = []

    def grown(parents: int) -> torch.Tensor:
        """Draft logits of as many nodes; the target's are kept."""
        logits = SPREAD * torch.randn(parents, VOCAB, generator=generator)
        rows.extend(logits)
        return AGREEMENT * logits + (1 - AGREEMENT**2) ** 0.5 * SPREAD * torch.randn(parents, VOCAB, generator=generator)

    builder = build_part(trial.builder, trial.options)
    growing = builder.grow(5, 100, Budget(nodes=NODES, depth=NODES), seeded(seed).draft)
    target_rows: dict[int, torch.Tensor] = {}
    frontier, truncation = next(growing), TruncationParams(temperature=1.0, top_k=trial.top_k)
    while True:
        q = draft_probs(grown(len(frontier.nodes)), None, VOCAB, truncation)
        target_rows |= dict(zip(frontier.nodes, rows[-len(frontier.nodes) :], strict=True))
        try:
            frontier = growing.send(DraftProbs(q))
        except StopIteration as stop:
            tree: DraftTree = stop.value
            break
    leaf = SPREAD * torch.randn(VOCAB, generator=generator)
    return tree, torch.stack([target_rows.get(node, leaf) for node in range(len(tree))])


def milliseconds(trial: Trial, trees: int, repeats: int) -> tuple[float, float, int]:
    """Median and 90th percentile of a verification, and the nodes of the largest draft."""
    verifier = build_part(trial.verifier)
    warper = LogitsWarper(SAMPLING, prompt_length=1, stop_ids=frozenset())
    taken, largest = list[float](), 0
    for seed in range(trees):
        tree, logits = drafted(trial, seed)
        largest = max(largest, tree.num_drafted)
        for repeat in range(repeats + 1):
            target_probs = warper.target_probs(logits, [0, 5], tree)
            rng = seeded(1000 * seed + repeat).target
            start = time.perf_counter()
            verifier.verify(tree, target_probs, rng)
            if repeat:
                taken.append(1000 * (time.perf_counter() - start))
    return median(taken), sorted(taken)[int(0.9 * len(taken))], largest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rules", nargs="*", choices=list(TRIALS), default=list(TRIALS), help="rules to time")
    parser.add_argument("--trees", type=int, default=12, help="drafts a rule")
    parser.add_argument("--repeats", type=int, default=4, help="verifications of each draft")
    parser.add_argument("--tokens", type=int, default=40, help="plain tokens; 0: none, and no ratio")
    arguments = parser.parse_args()
    keep_freed_memory()
    plain = plain_milliseconds(arguments.tokens) if arguments.tokens else float("nan")
    print(f"plain forward: {plain:.1f} ms; {torch.get_num_threads()} threads")
    for name in arguments.rules:
        middle, high, nodes = milliseconds(TRIALS[name], arguments.trees, arguments.repeats)
        print(f"{name:22} {nodes:2} nodes  {middle:7.2f} ms (90 %: {high:7.2f})  {middle / plain:5.2f} of a plain forward")


if __name__ == "__main__":
    main()
