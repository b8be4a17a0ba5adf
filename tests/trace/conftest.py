"""Traces of small generations."""

import pytest

from specdec.trace.files import TraceFile, read_trace
from specdec.trace.recorder import Recorder


@pytest.fixture
def traced(compose, table, tmp_path):
    """(trace, generation) of a strategy on a tabular model."""

    def make(parts, *, vocab=8, spec=None, target=None, path=None, **options):
        decoder = compose(target or table(vocab), parts)
        options = {"max_new_tokens": 40, "seed": 5, **options}
        with TraceFile(path or tmp_path / "t.jsonl") as file:
            recorder = Recorder(file, decoder, [1, 2], spec or {"drafter": {"use": "tabular"}}, options["seed"])
            *_, last = decoder.stream([1, 2], step_callback=recorder.step_callback, **options)
            recorder.finish(last.generation)
        return read_trace(path or tmp_path / "t.jsonl"), last.generation

    return make
