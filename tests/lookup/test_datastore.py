import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

from specdec.errors import SpecError
from specdec.lookup.array_files import write_arrays
from specdec.lookup.datastore import CONTEXT, SAMPLE, build_datastore, read_datastore, write_datastore
from specdec.lookup.successors import SuccessorTables, read_successors, write_successors

TEXTS = st.lists(st.lists(st.integers(0, 3), max_size=30), min_size=1, max_size=4).filter(any)


def naive(texts, context):
    """All suffixes of `context` that occur followed, the longest first, one of each set of occurrences."""
    found = []
    for length in range(1, min(len(context), CONTEXT) + 1):
        suffix, followers = context[len(context) - length :], []
        for text in texts:
            followers += [text[i] for i in range(length, len(text)) if text[i - length : i] == suffix]
        if not followers:
            break
        if found and len(found[-1][1]) == len(followers):
            found.pop()
        found.append((length, followers))
    return [(length, {t: f.count(t) for t in f}) for length, f in reversed(found)]


@given(TEXTS, st.lists(st.integers(0, 3), min_size=1, max_size=20))
def test_matches_are_those_of_a_search(texts, context):
    store = build_datastore(texts, vocabulary=None)
    assert [(n, dict(rows)) for n, rows in store.matches(context, 99)] == naive(texts, context)
    assert store.matches(context, 2) == store.matches(context, 99)[:2]
    assert store.num_tokens == sum(map(len, texts))


def test_many_occurrences_are_sampled_and_extrapolated():
    text = [1, 2, 1, 3] * (4 * SAMPLE)
    ((length, rows),) = build_datastore([text], vocabulary=None).matches([9, 1], 1)
    assert length == 1
    assert dict(rows)[2] + dict(rows)[3] == pytest.approx(8 * SAMPLE, rel=0.01)


def test_a_file_gives_the_store_back(tmp_path):
    store = build_datastore([[1, 2, 3], [1, 2, 4]], vocabulary="abc")
    write_datastore(tmp_path / "s", store)
    again = read_datastore(tmp_path / "s")
    assert numpy.array_equal(again.tokens, store.tokens)
    assert numpy.array_equal(again.order, store.order)
    assert again.vocabulary == "abc"
    assert again.matches([1, 2], 1) == store.matches([1, 2], 1)
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_texts_without_a_token_are_refused():
    with pytest.raises(SpecError, match="nothing to look up"):
        build_datastore([[]], vocabulary=None)


def test_a_file_of_another_kind_or_a_damaged_one_is_refused(tmp_path):
    tables = SuccessorTables()
    tables.enter([1, 2], ((3, 0.5),))
    write_successors(tmp_path / "other", tables, vocabulary=None)
    with pytest.raises(SpecError, match="holds successors, expected a datastore"):
        read_datastore(tmp_path / "other")
    write_datastore(tmp_path / "s", build_datastore([[1, 2, 3]], vocabulary=None))
    (tmp_path / "cut").write_bytes((tmp_path / "s").read_bytes()[:-4])
    with pytest.raises(SpecError, match="not a datastore"):
        read_datastore(tmp_path / "cut")
    with pytest.raises(SpecError, match="not a datastore"):
        read_datastore(tmp_path / "absent")
    store = build_datastore([[1, 2, 3]], vocabulary=None)
    store.order[0] = 999
    write_datastore(tmp_path / "wrong", store)
    with pytest.raises(SpecError, match="damaged"):
        read_datastore(tmp_path / "wrong")


@pytest.mark.parametrize("dtype", ["float32", "complex64", "int64", "bool", "uint8"])
@pytest.mark.parametrize("name", ["tokens", "order"])
def test_a_datastore_of_other_numbers_is_refused(tmp_path, name, dtype):
    store = build_datastore([[1, 2, 3]], vocabulary=None)
    arrays = {"tokens": store.tokens, "order": store.order}
    write_arrays(tmp_path / "s", {**arrays, name: arrays[name].astype(dtype)}, kind="datastore", vocabulary=None)
    with pytest.raises(SpecError, match=f"damaged: {name} holds {dtype}, expected int32"):
        read_datastore(tmp_path / "s")


@pytest.mark.parametrize(
    "change", [lambda a: a[:1], lambda a: a[:0], lambda a: numpy.concatenate([a, a]), lambda a: a[0], lambda a: a[None]]
)
@pytest.mark.parametrize("name", ["contexts1", "tokens1", "probabilities1", "contexts2"])
def test_successors_whose_arrays_do_not_fit_together_are_refused(tmp_path, name, change):
    tables = SuccessorTables()
    for tokens in ([1, 2], [2, 1]):
        tables.enter(tokens, ((3, 0.5),))
    write_successors(tmp_path / "t", tables, vocabulary=None)
    arrays = load_file(tmp_path / "t")
    write_arrays(tmp_path / "t", {**arrays, name: change(arrays[name])}, kind="successors", vocabulary=None)
    with pytest.raises(SpecError, match="damaged"):
        read_successors(tmp_path / "t")
