"""Our own milliseconds a step for a 16-node tree over 49,152 tokens: the model and the drafter cost nothing here.

The target gives prepared logits; its mask, cache bookkeeping and commit are the real ones, with the shapes of SmolLM2-135M.
"""

import sys
import time
from statistics import median

import torch

from specdec.decoding.decoder import Decoder
from specdec.decoding.requests import Request
from specdec.drafters.none import NoDrafter
from specdec.interfaces.declarations import DrafterDeclaration, Gives
from specdec.interfaces.parts import Drafter, DraftSession, PartOptions, Prefilled, Target, TargetState, build_part
from specdec.interfaces.proposals import Distributions
from specdec.interfaces.results import PHASES, Scored, TargetFacts
from specdec.nn.kv_cache import KvCache, LayerShape
from specdec.nn.placement import keep_freed_memory
from specdec.nn.tree_mask import RowNodes, additive, tree_mask, tree_positions
from specdec.sampling.params import SamplingParams
from specdec.tree_builders.dynamic import Dynamic, DynamicOptions
from specdec.tree_builders.fixed import Fixed, FixedOptions
from specdec.verifiers.match import Match

VOCAB, LAYERS, HEADS, DIM, PROMPT, STEPS = 49_152, 30, 3, 64, 256, 60
SIXTEEN = [[0], [1], [2], [3], [0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [2, 0], [0, 0, 0], [0, 0, 1], [0, 1, 0], [1, 0, 0],
           [0, 0, 0, 0], [0, 0, 0, 0, 0]]  # fmt: skip


def logits(rows: int, seed: int) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3


class CannedState(TargetState):
    def __init__(self, rows):
        shape = LayerShape(HEADS, DIM, DIM, torch.float32, torch.device("cpu"))
        self.kv = KvCache([shape] * LAYERS, rows)

    @property
    def lengths(self):
        return tuple(self.kv.lengths)

    def check_integrity(self):
        self.kv.check_integrity()


class Canned(Target):
    name = "canned"
    Options = PartOptions

    def __init__(self):
        self.rows = [logits(64, seed) for seed in range(8)]
        self.calls = 0

    @classmethod
    def declares(cls, options):
        raise NotImplementedError

    @classmethod
    def build(cls, options, tools):
        raise NotImplementedError

    @property
    def facts(self):
        return TargetFacts(VOCAB, None, frozenset({2}), 576, LAYERS, torch.device("cpu"), torch.float32, "canned")

    codec = None

    def prefill(self, prompts, features):
        state = CannedState(len(prompts))
        state.kv.stage([0] * len(prompts), len(prompts[0]))
        state.kv.lengths = [len(prompt) for prompt in prompts]
        return Prefilled(state, tuple(Scored(self.rows[0][:1]) for _ in prompts))

    def score(self, state, trees):
        self.calls += 1
        tree = trees[0]
        rows = [RowNodes(state.kv.lengths[0], tree.parents, tree.depths, 0)]
        state.kv.stage([rows[0].length], len(tree))
        tree_positions(rows, len(tree))
        if len(tree) > 1:
            mask = tree_mask(rows, nodes=len(tree), slots=state.kv.staged_width)
            additive(mask, torch.float32, torch.device("cpu"))
        return [Scored(self.rows[self.calls % 8][: len(tree)])]

    def commit(self, state, paths):
        state.kv.commit([() if path is None else (0, *path) for path in paths])

    def keep(self, state, rows):
        state.kv.keep(rows)

    def fork(self, state, copies):
        raise NotImplementedError

    def join(self, state, other):
        raise NotImplementedError

    embed = head = fork


class Answers(DraftSession):
    def __init__(self, rows):
        self.rows = rows
        self.calls = 0

    def expand(self, frontiers):
        self.calls += 1
        return [Distributions(self.rows[self.calls % 8][: len(frontiers[0].nodes)])]

    def observe(self, committed, scored):
        pass

    def keep(self, rows):
        pass

    def join(self, other):
        pass


class CannedDrafter(Drafter):
    name = "canned"
    Options = PartOptions

    def __init__(self):
        self.rows = [logits(16, 50 + seed) for seed in range(8)]

    @classmethod
    def declares(cls, options):
        return DrafterDeclaration(gives=Gives.DISTRIBUTIONS)

    @classmethod
    def build(cls, options, tools):
        return cls()

    def open(self, starts):
        return Answers(self.rows)


def milliseconds(builder_class, builder_options, drafter, sampling):
    """Median over steps: draft, and everything else."""
    drafter.declaration = drafter.declares(drafter.Options())
    decoder = Decoder(Canned(), drafter, build_part(builder_class, builder_options), build_part(Match), sampling=sampling)
    run = decoder.start([Request(prompt=tuple(range(3, 3 + PROMPT)), max_new_tokens=1000, ignore_eos=True)])
    draft, rest, nodes = [], [], []
    for _ in range(STEPS):
        began = time.perf_counter()
        (record,) = decoder.step(run)
        total = time.perf_counter() - began
        draft.append(record.seconds["draft"])
        rest.append(total - record.seconds["draft"])
        nodes.append(record.drafted)
    assert set(record.seconds) == set(PHASES)
    return median(draft) * 1e3, median(rest) * 1e3, max(nodes)


def main() -> int:
    keep_freed_memory()
    greedy, nucleus = SamplingParams(), SamplingParams(temperature=1.0, top_p=0.95)
    fixed = (Fixed, FixedOptions.model_validate({"paths": SIXTEEN}))
    dynamic = (Dynamic, DynamicOptions(width=8, depth=5, nodes=16))
    rows = [
        ("fixed, T = 0", *milliseconds(*fixed, CannedDrafter(), greedy), 2.0, 2.0),
        ("fixed, T = 1, top-p 0.95", *milliseconds(*fixed, CannedDrafter(), nucleus), 2.0, 5.0),
        ("dynamic, T = 0", *milliseconds(*dynamic, CannedDrafter(), greedy), 6.0, 2.0),
        ("dynamic, T = 1, top-p 0.95", *milliseconds(*dynamic, CannedDrafter(), nucleus), 6.0, 5.0),
        ("no draft, T = 0", *milliseconds(*fixed, NoDrafter(), greedy), 1.0, 1.0),
    ]
    bad = 0
    for name, draft, rest, nodes, draft_bar, rest_bar in rows:
        holds = draft <= draft_bar and rest <= rest_bar
        bad += not holds
        print(
            f"{name:28} {nodes:3} nodes  draft {draft:5.2f} ms (bar {draft_bar})  "
            f"rest {rest:5.2f} ms (bar {rest_bar})  {'' if holds else 'TOO SLOW'}"
        )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
