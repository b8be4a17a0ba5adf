import pytest

from specdec.drafters.vocabulary import check_vocabularies
from specdec.errors import SpecdecWarning, TargetMismatch
from specdec.interfaces.parts import BuildTools, Target
from specdec.interfaces.text_codec import TextCodec
from specdec.targets.tabular import Tabular as TabularTarget
from specdec.targets.tabular import TabularTargetOptions


class Words(TextCodec):
    """A tokenizer of which only the vocabulary matters."""

    special_tokens = {}
    control_tokens = ()
    chat_template = None

    def __init__(self, texts):
        self._ids = {text: token for token, text in enumerate(texts)}

    def encode(self, text, **options):
        return [self._ids[text]]

    def decode(self, ids):
        return ""

    def chat(self, messages, chat_format=None):
        return []

    def tokenizer_json(self):
        return None

    def vocabulary(self):
        return self._ids


class Speaking(Target):
    """A tabular target with another tokenizer."""

    name = "speaking"
    Options = TabularTargetOptions

    def __init__(self, texts):
        self._inner = TabularTarget.build(TabularTargetOptions(vocab=len(texts), random={}), BuildTools())
        self._codec = Words(texts)

    @classmethod
    def declares(cls, options):
        return TabularTarget.declares(options)

    @classmethod
    def build(cls, options, tools):
        return cls("abc")

    @property
    def facts(self):
        return self._inner.facts

    @property
    def codec(self):
        return self._codec

    def prefill(self, prompts, features):
        return self._inner.prefill(prompts, features)

    def score(self, state, trees):
        return self._inner.score(state, trees)

    def commit(self, state, paths):
        self._inner.commit(state, paths)

    def keep(self, state, rows):
        self._inner.keep(state, rows)

    def fork(self, state, copies):
        return self._inner.fork(state, copies)

    def join(self, state, other):
        self._inner.join(state, other)

    def embed(self, ids):
        return self._inner.embed(ids)

    def head(self, hidden):
        return self._inner.head(hidden)


def test_two_swapped_ids_are_refused_and_the_first_is_named():
    with pytest.raises(TargetMismatch, match="id 3 is 'e' in the draft model and 'd' in the target"):
        check_vocabularies(Speaking("abcedf"), Speaking("abcdef"))


def test_the_last_two_ids_swapped_are_refused_too():
    with pytest.raises(TargetMismatch, match="id 4 "):
        check_vocabularies(Speaking("abcdfe"), Speaking("abcdef"))


def test_unrelated_vocabularies_are_refused():
    with pytest.raises(TargetMismatch, match="id 0 "):
        check_vocabularies(Speaking("uvwxyz"), Speaking("abcdef"))


@pytest.mark.parametrize(("draft", "main"), [("abcd", "abcdef"), ("abcdef", "abcd"), ("abcdef", "abcdef")])
def test_more_ids_on_one_side_are_allowed(draft, main):
    check_vocabularies(Speaking(draft), Speaking(main))


def test_other_added_tokens_at_the_end_are_allowed():
    check_vocabularies(Speaking("abcdefXY"), Speaking("abcdefPQR"))


def test_a_different_token_in_the_middle_is_no_added_token():
    with pytest.raises(TargetMismatch, match="id 2 "):
        check_vocabularies(Speaking("abXdef"), Speaking("abcdef"))


def mute(vocab):
    target = TabularTarget.build(TabularTargetOptions(vocab=vocab, random={}), BuildTools())
    assert target.codec is None
    return target


def test_one_tokenizer_and_other_sizes_are_refused_and_the_side_without_is_named():
    with pytest.raises(TargetMismatch, match=r"the draft model has no tokenizer .* 27 in the draft model, 3 in the target"):
        check_vocabularies(mute(27), Speaking("abc"))
    with pytest.raises(TargetMismatch, match=r"the target has no tokenizer .* 3 in the draft model, 27 in the target"):
        check_vocabularies(Speaking("abc"), mute(27))


def test_one_tokenizer_and_equal_sizes_are_let_pass_with_a_warning():
    speaking = Speaking([f"word{n}" for n in range(30)])
    with pytest.warns(SpecdecWarning, match="the draft model has no tokenizer"):
        check_vocabularies(mute(30), speaking)
    with pytest.warns(SpecdecWarning, match="the target has no tokenizer"):
        check_vocabularies(speaking, mute(30))


def test_without_any_tokenizer_nothing_is_compared():
    check_vocabularies(mute(27), mute(40))
