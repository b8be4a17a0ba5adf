"""`mixture`: who is asked, whose token counts, and what every part learns."""

import math

import pytest

import specdec
from specdec.config.catalog import load_catalog
from specdec.config.resolver import check, read
from specdec.drafters.mixture import MixtureDrafter, MixtureOptions
from specdec.errors import IncompatibleParts, SpecError, TargetMismatch
from specdec.interfaces.declarations import DrafterDeclaration, Features, Gives, Kind
from specdec.interfaces.parts import BuildTools, Drafter, DraftSession, PartOptions
from specdec.interfaces.proposals import Candidates, DraftStart, Frontier
from specdec.interfaces.results import Committed, HiddenStates, Scored
from specdec.trees.draft_tree import TreeSketch

TABLE = {"use": "tabular", "vocab": 6, "random": {"order": 3, "seed": 1, "sharpness": 3}}


class Scripted(Drafter[PartOptions]):
    """Says the same at every node, and remembers what it was asked and told."""

    name = "scripted"
    Options = PartOptions

    def __init__(self, says):
        self.says = says
        self.sessions = []

    @classmethod
    def declares(cls, options):
        return DrafterDeclaration(Gives.CANDIDATES)

    @classmethod
    def build(cls, options, tools):
        return cls({})

    def open(self, starts):
        self.sessions.append(ScriptedSession(self.says, starts))
        return self.sessions[-1]


class ScriptedSession(DraftSession):
    def __init__(self, says, starts):
        self.says, self.starts = says, starts
        self.asked, self.told = [], []

    def expand(self, frontiers):
        self.asked.append([None if f is None else f.nodes for f in frontiers])
        tokens, chances = tuple(self.says), tuple(math.log(p) for p in self.says.values())
        return [None if f is None else Candidates((tokens,) * len(f.nodes), (chances,) * len(f.nodes)) for f in frontiers]

    def observe(self, committed, scored):
        self.told.append((committed, scored))

    def keep(self, rows):
        self.starts = [self.starts[row] for row in rows]

    def join(self, other):
        self.starts = [*self.starts, *other.starts]


def mixed(*parts, **options):
    """parts: (what it says, whether it computes[, features]). The session and the parts' drafters."""
    drafters = [Scripted(says) for says, *_ in parts]
    for drafter, (_, computes, *features) in zip(drafters, parts, strict=True):
        drafter.declaration = DrafterDeclaration(Gives.DISTRIBUTIONS if computes else Gives.CANDIDATES, *features)
    chosen = MixtureOptions(parts=[{"use": "x"}] * len(parts), **options)
    return MixtureDrafter.build(chosen, BuildTools(drafters=tuple(drafters))), drafters


def opened(drafter, rows=1):
    return drafter.open([DraftStart((1, 2), 3, HiddenStates())] * rows)


def offered(session, tree=None, nodes=(0,)):
    answer = session.expand([Frontier(tree or TreeSketch(3, 2), nodes)])[0]
    rows = zip(answer.tokens, answer.scores, answer.sources, strict=True)
    return [[(t, round(math.exp(s), 6), part) for t, s, part in zip(*row, strict=True)] for row in rows]


def test_every_token_goes_to_whoever_believes_in_it_most():
    drafter, _ = mixed(({5: 0.5, 6: 0.2}, True), ({6: 0.4, 7: 0.1}, True))
    assert offered(opened(drafter)) == [[(5, 0.5, 0), (6, 0.4, 1), (7, 0.1, 1)]]


def test_a_part_that_computes_is_not_asked_where_one_that_counts_is_sure_or_below():
    drafter, (slow, quick) = mixed(({5: 0.5}, True), ({6: 0.9}, False), sure=0.8)
    session, tree = opened(drafter), TreeSketch(3, 2)
    assert offered(session, tree) == [[(6, 0.9, 1)]]
    assert slow.sessions[0].asked == []
    quick.says.clear()
    quick.says[6] = 0.1
    child = tree.add(0, 6)
    assert offered(session, tree, (child,)) == [[(6, 0.1, 1)]]
    assert slow.sessions[0].asked == []


def test_it_is_asked_where_nobody_is_sure_and_of_those_nodes_only():
    drafter, (slow, quick) = mixed(({5: 0.5}, True), ({6: 0.3}, False), sure=0.8)
    session, tree = opened(drafter), TreeSketch(3, 2)
    offered(session, tree)
    nodes = (tree.add(0, 5), tree.add(0, 6))
    quick.says[6] = 0.9
    session.expand([Frontier(tree, nodes[:1])])
    quick.says[6] = 0.3
    assert offered(session, tree, nodes[1:]) == [[(5, 0.5, 0), (6, 0.3, 1)]]
    assert slow.sessions[0].asked == [[(0,)], [nodes[1:]]]


def test_with_sure_at_one_everybody_is_asked_always():
    drafter, (slow, _) = mixed(({5: 0.5}, True), ({6: 0.99}, False), sure=1)
    offered(opened(drafter))
    assert slow.sessions[0].asked == [[(0,)]]


def test_a_part_whose_tokens_never_come_is_believed_less_and_one_whose_come_more():
    drafter, _ = mixed(({5: 0.5}, True), ({6: 0.5}, True))
    session = opened(drafter)
    for _ in range(20):
        offered(session)
        session.observe([Committed((6,), (0,))], [Scored(None)])
    (first, second) = offered(session)[0]
    assert (first[0], second[0]) == (6, 5)
    assert first[1] > 0.7
    assert second[1] < 0.2


def test_rows_are_asked_together_and_learn_apart():
    drafter, (only, _) = mixed(({5: 0.5}, True), ({6: 0.5}, True))
    session = opened(drafter, rows=2)
    for _ in range(20):
        session.expand([Frontier(TreeSketch(3, 2), (0,)), None])
        session.observe([Committed((6,), (0,)), Committed((5,), (0,))], [Scored(None), Scored(None)])
    answers = session.expand([Frontier(TreeSketch(3, 2), (0,))] * 2)
    assert [answer.tokens[0][0] for answer in answers] == [6, 5]
    assert answers[1].scores[0] == pytest.approx((math.log(0.5), math.log(0.5)))
    session.keep([1])
    assert offered(session) == [[(5, 0.5, 0), (6, 0.5, 1)]]
    assert len(only.sessions[0].starts) == 1


def test_every_part_sees_its_own_hidden_states():
    import torch

    layers = torch.arange(6.0).view(1, 2, 3)
    drafter, (first, second, third) = mixed(
        ({5: 0.5}, True, Features(layers=(4, 2))), ({5: 0.5}, True, Features(last=True, layers=(2,))), ({5: 0.5}, False)
    )
    hidden = HiddenStates(torch.ones(1, 3), layers)
    session = drafter.open([DraftStart((1,), 3, hidden)])
    session.observe([Committed((6,), (0,), hidden)], [Scored(None, hidden)])
    for part, last, kept in ((first, False, [0, 1]), (second, True, [1]), (third, False, None)):
        (committed, scored), *_ = part.sessions[0].told
        for seen in (part.sessions[0].starts[0].hidden, committed[0].hidden, scored[0].hidden):
            assert (seen.last is not None) == last
            assert seen.layers is None if kept is None else torch.equal(seen.layers, layers[:, kept])


def test_without_its_parts_it_cannot_be_built():
    with pytest.raises(TargetMismatch, match="2 drafters was given 0"):
        MixtureDrafter.build(MixtureOptions(parts=[{"use": "a"}, {"use": "b"}]), BuildTools())


# --- composing ------------------------------------------------------------------------------------------------------

SPEC = """name: mixed
target: {{use: tabular, vocab: 6, random: {{order: 3, seed: 1, sharpness: 3}}}}
drafter:
  use: mixture
  parts:
{parts}
tree: {{use: dynamic, width: 3, depth: 4, nodes: 8}}
verifier: {{use: {verifier}}}
"""


@pytest.fixture
def spec(tmp_path):
    def make(*parts, verifier="match"):
        path = tmp_path / "mixed.yaml"
        path.write_text(SPEC.format(parts="\n".join(f"    - {part}" for part in parts), verifier=verifier))
        return path

    return make


GOOD = "{use: ngram}"
TABULAR = "{use: tabular, vocab: 6, random: {order: 3, seed: 2, sharpness: 3}}"
MODEL = "{use: model, model: {use: tabular, vocab: 6, random: {order: 3, seed: 3, sharpness: 3}}}"


def test_parts_are_composed_with_their_own_models_and_decode_as_plain_decoding_does(spec):
    path = spec(GOOD, TABULAR, MODEL, "{use: suffix}", "{use: recycling}")
    decoder = specdec.load(path)
    plain = specdec.load("plain", target={**TABLE})
    prompts = [[1, 2], [3], [0, 1, 2, 3, 4, 5, 0, 1]]
    for sampling in ({}, {"temperature": 1.0, "seed": 3}):
        got = decoder.generate(prompts, max_new_tokens=40, sampling=sampling, seed=5)
        want = plain.generate(prompts, max_new_tokens=40, sampling=sampling, seed=5)
        assert [g.tokens for g in got] == [w.tokens for w in want]
    origins = {source for generation in got for record in generation.records for source in record.sources}
    assert origins - {-1} == {n for n in origins if n >= 0}
    assert len(origins) >= 3
    assert got[0].tau > 1


def test_a_spec_that_was_resolved_gives_the_same_plan(spec):
    catalog = load_catalog()
    resolved = check(read(spec(GOOD, MODEL), catalog), catalog)
    plain_spec = resolved.plain()
    assert plain_spec["drafter"]["parts"][0] == {"use": "ngram", "max_ngram": 12, "min_ngram": 1} | {
        key: plain_spec["drafter"]["parts"][0][key] for key in ("candidates", "min_confidence", "adaptive")
    }
    assert check(read(plain_spec, catalog), catalog).plain() == plain_spec
    assert [part.name for part in resolved.drafters] == ["ngram", "model"]
    assert set(resolved.nested) == {"parts.1.model"}


def test_what_the_parts_read_is_what_the_mixture_reads():
    catalog = load_catalog()
    raw = {"drafter": {"use": "mixture", "parts": [{"use": "eagle", "head": "builtin"}, {"use": "suffix"}]}}
    declares = check(read(raw, catalog), catalog).parts[Kind.DRAFTER].declares
    assert declares.features == Features(last=True)
    assert declares.gives is Gives.CANDIDATES


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ("{use: ngrm}", r":7: drafter.parts.1.use: no drafter is called 'ngrm'.*ngram"),
        ("{use: ngram, max_ngrams: 3}", r":7: .*max_ngrams"),
        ("{use: none}", r":7: .*'none' drafts nothing"),
        ("{use: mixture, parts: [{use: ngram}, {use: suffix}]}", r":7: .*asks others itself; list its parts here"),
        ("{max_ngram: 3}", r":7: .*expected a drafter such as \{use: NAME\}"),
        ("{use: model, model: {use: nobody}}", r":7: .*no target is called 'nobody'"),
    ],
)
def test_a_faulty_part_is_told_with_its_line(spec, part, message):
    with pytest.raises(SpecError, match=f"(?s){message}"):
        specdec.load(spec(GOOD, part))


def test_one_part_is_no_mixture(spec):
    with pytest.raises(SpecError, match="parts"):
        specdec.load(spec(GOOD))


def test_a_verifier_that_reads_q_is_refused(spec):
    with pytest.raises(IncompatibleParts, match="'mixture' gives candidates without q"):
        specdec.load(spec(GOOD, TABULAR, verifier="multi_round"))
