"""A spec with mistakes without end is answered in a time that grows with its length, and in a few lines."""

import time

import pytest

from specdec import compose
from specdec.config.overrides import layered
from specdec.errors import SpecError, listed
from specdec.files.yaml_document import Document, Origin, read_text

MANY = 20_000


def seconds_of(action):
    began = time.perf_counter()
    with pytest.raises(SpecError) as error:
        action()
    return time.perf_counter() - began, str(error.value).splitlines()


@pytest.fixture
def spec(tmp_path):
    def write(text):
        (tmp_path / "s.yaml").write_text(text)
        return lambda: compose.resolve(tmp_path / "s.yaml", compose.load_catalog())

    return write


def keys(count, indent=""):
    return "".join(f"{indent}k{number}: 1\n" for number in range(count))


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        lambda n: "drafter: {use: ngram}\n" + keys(n),
        lambda n: "drafter:\n  use: ngram\n" + keys(n, "  "),
        lambda n: "drafter: {use: ngram}\nsampling:\n" + keys(n, "  "),
        lambda n: "drafter: {use: ngram}\n" + "name: x\n" * n,
        lambda n: "drafter: {use: ngram}\n" + "".join(f"a{number}: &x 1\n" for number in range(n)),
        lambda n: "drafter: {use: ngram}\ntree: {use: fixed, widths: [" + "x, " * n + "]}\n",
    ],
    ids=["unknown", "options", "sampling", "repeated", "anchors", "items"],
)
def test_ninety_thousand_mistakes_are_counted_and_ten_are_shown(spec, text):
    short, _ = seconds_of(spec(text(MANY // 10)))
    long, lines = seconds_of(spec(text(MANY)))
    assert long < max(30 * short, 6)
    assert len(lines) < 25
    assert any(f"... and {MANY - hidden:,} more" in lines for hidden in (9, 10, 11))


@pytest.mark.slow
def test_two_long_specs_are_laid_over_each_other_in_linear_time():
    origin = Origin("a")

    def document(count):
        data = {f"k{number}": number for number in range(count)}
        return Document(data, {(): origin, **{(key,): origin for key in data}})

    began = time.perf_counter()
    assert len(layered(document(MANY), document(MANY)).data) == MANY
    assert time.perf_counter() - began < 3


def test_few_problems_are_listed_whole():
    assert listed(["a", "b"]) == "a\nb"
    assert listed(map(str, range(11))) == "\n".join([*map(str, range(10)), "... and 1 more"])


@pytest.mark.parametrize(
    "text", ["a: 1", "a: '1'", 'a: "1"', "a: |\n  1", "a: x", "a: null", "a: yes", "a: .5", "a: [1, x, '2']"]
)
def test_both_readers_tell_plain_scalars_from_quoted_ones(text, monkeypatch):
    fast = read_text(text, "s").data
    monkeypatch.delattr("yaml.CSafeLoader", raising=False)
    slow = read_text(text, "s").data
    assert (fast, [type(value) for value in fast.values()]) == (slow, [type(value) for value in slow.values()])
