"""llama-cpp-python's interface, as far as the adapter uses it, by a stand-in: the package has no wheel to test with."""

import numpy as np
import pytest

from specdec.integrations.llama_cpp import Generating, steps_of
from specdec.losslessness.external.callables import ask
from specdec.losslessness.external.instrumented import AcceptanceRule
from specdec.sampling.params import SamplingParams

EOS = 7


class Llama:
    """Counts upwards from the last token, modulo 8; drafts by a function of the text, and goes on behind a wrong draft."""

    def __init__(self, draft_model=None):
        self.draft_model, self.seeds, self.options = draft_model, [], {}

    def set_seed(self, seed):
        self.seeds.append(seed)

    def token_eos(self):
        return EOS

    def generate(self, tokens, **options):
        self.options, text = options, list(tokens)
        drafted = []
        while True:
            for draft in [*drafted, None]:
                text.append((text[-1] + 1) % 8)
                yield text[-1]
                if text[-1] != draft:
                    break
            drafted = [] if self.draft_model is None else list(self.draft_model(np.array(text)))


def lookup(text):
    """Two tokens, of which the second is wrong after an even one."""
    return np.array([text[-1] + 1, 0 if text[-1] % 2 == 0 else text[-1] + 2])


def test_steps_say_what_was_drafted_and_accepted():
    llama = Llama(lookup)
    asked = ask(Generating(llama, SamplingParams(temperature=1.0)), [0], 6, 1 << 40, 8)
    assert asked.tokens == (1, 2, 3, 4, 5, 6)
    assert [(list(s.drafted), s.accepted, s.next_token) for s, _ in asked.steps] == [([], 0, 1), ([2, 3], 2, 4), ([5, 0], 1, 6)]
    assert asked.steps.rule is AcceptanceRule.MATCH
    assert llama.draft_model is lookup
    assert llama.options["top_k"] == 0
    assert llama.options["min_p"] == 0.0
    assert 0 <= llama.seeds[0] < 2**31


def test_without_a_draft_model_there_are_ids_only_up_to_the_stop_token():
    asked = ask(Generating(Llama(), SamplingParams(temperature=0.0)), [4], 6, 0, 8)
    assert asked.tokens == (5, 6, 7)
    assert asked.steps is None


@pytest.mark.parametrize(("count", "last"), [(2, (2, None)), (3, (2, 3))])
def test_an_answer_cut_behind_an_accepted_draft_ends_with_it(count, last):
    steps = steps_of(1, [1, 2, 3][:count], [(1, [1, 2])])
    assert (steps[-1].accepted, steps[-1].next_token) == last
