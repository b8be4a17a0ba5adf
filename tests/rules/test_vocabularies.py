"""A drafter with another vocabulary keeps the distribution, or is refused."""

import pytest

from specdec.drafters.model import ModelDrafter, ModelOptions
from specdec.drafters.tabular import TabularDrafterOptions
from specdec.drafters.vocabulary import check_vocabularies
from specdec.errors import TargetMismatch
from specdec.interfaces.parts import BuildTools
from specdec.interfaces.text_codec import TextCodec
from specdec.losslessness.exact.enumeration import prove_step
from specdec.sampling.params import SamplingParams
from specdec.tree_builders.chain import Chain, ChainOptions
from specdec.tree_builders.fixed import Fixed, FixedOptions
from specdec.tree_builders.sampled import Sampled, SampledOptions
from specdec.verifiers.chain import Chain as ChainRule
from specdec.verifiers.match import Match
from specdec.verifiers.multi_round import MultiRound

PAIRS = {
    "greedy chain": (Chain, ChainOptions(length=2), Match),
    "sampled chain": (Chain, ChainOptions(length=2, draw="sampled"), ChainRule),
    "fixed": (Fixed, FixedOptions(widths=[2, 1]), Match),
    "wor": (Sampled, SampledOptions(widths=[2]), MultiRound),
}


def drafter_of(target, draft):
    return ModelDrafter.build(ModelOptions(model={"use": "tabular"}), BuildTools(target=target, targets={"model": draft}))


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("source", ["table", "model"])
def test_a_drafter_of_fewer_tokens_keeps_the_distribution_of_the_larger_target(compose, table, parts_of, name, source):
    target = table(16, seed=1)
    drafter = (
        TabularDrafterOptions(vocab=12, random={"seed": 2}) if source == "table" else drafter_of(target, table(12, seed=2))
    )
    decoder = compose(target, parts_of(*PAIRS[name]), drafter, sampling=SamplingParams(temperature=1.0))
    assert prove_step(decoder, (0, 1), depth=1).holds


@pytest.mark.parametrize("name", PAIRS)
def test_the_target_still_emits_the_tokens_that_the_drafter_lacks(compose, table, parts_of, watched, name):
    rows = {"*": [0.02] * 12 + [0.19] * 4}
    target = watched(table(16, rows=rows))
    drafter = drafter_of(target, table(12, seed=2))
    decoder = compose(target, parts_of(*PAIRS[name]), drafter, sampling=SamplingParams(temperature=1.0))
    answer = decoder.generate([[13, 1]], max_new_tokens=60)[0]
    assert {12, 13, 14, 15} <= set(answer.tokens)
    drafted = {token for trees in target.trees for tree in trees for token in tree.tokens[1:]}
    assert drafted <= set(range(12))


@pytest.mark.parametrize("name", PAIRS)
def test_a_drafter_of_more_tokens_never_proposes_one_that_the_target_lacks(compose, table, parts_of, watched, name):
    target = watched(table(8, seed=1))
    drafter = drafter_of(target, table(16, rows={"*": [0.01] * 8 + [0.115] * 8}))
    decoder = compose(target, parts_of(*PAIRS[name]), drafter, sampling=SamplingParams(temperature=1.0))
    assert len(decoder.generate([[1]], max_new_tokens=40)[0].tokens) == 40
    assert prove_step(decoder, (0, 1), depth=1).holds


class Words(TextCodec):
    """A tokenizer that is only its vocabulary."""

    special_tokens = {}
    control_tokens = ()
    chat_template = None

    def __init__(self, *words):
        self._ids = {word: token for token, word in enumerate(words)}

    def encode(self, text, **options):
        return [self._ids[word] for word in text.split()]

    def decode(self, ids):
        return " ".join(list(self._ids)[token] for token in ids)

    def chat(self, messages, chat_format=None):
        raise NotImplementedError

    def tokenizer_json(self):
        return None

    def vocabulary(self):
        return self._ids


OWN = ("the", "a", "cat", "dog", "sat", "ran", "on", "<extra_0>")


@pytest.fixture
def build(table, watched):
    """A draft model of these words for a target of OWN."""

    def make(*words):
        target, draft = watched(table(len(OWN)), Words(*OWN)), watched(table(len(words)), Words(*words))
        check_vocabularies(draft, target)
        return drafter_of(target, draft)

    return make


@pytest.mark.parametrize(("first", "second"), [(0, 1), (2, 5), (5, 6)])
def test_two_swapped_tokens_are_refused_and_the_first_is_named(build, first, second):
    words = list(OWN)
    words[first], words[second] = words[second], words[first]
    with pytest.raises(TargetMismatch, match=rf"id {first} is '{words[first]}'.*'{OWN[first]}' in the target"):
        build(*words)


def test_unrelated_vocabularies_of_one_size_are_refused(build):
    with pytest.raises(TargetMismatch, match="id 0 is"):
        build("der", "eine", "katze", "hund", "sass", "lief", "auf", "<extra_0>")


@pytest.mark.parametrize(
    "words",
    [OWN, OWN[:-1], (*OWN, "<extra_1>"), (*OWN[:-1], "<other>")],
    ids=["same", "fewer", "more", "another added token"],
)
def test_tokens_that_were_added_later_may_differ(build, words):
    assert build(*words) is not None
