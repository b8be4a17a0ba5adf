import sys

import numpy as np
import pytest
import torch

from specdec.errors import PluginError, SpecError
from specdec.losslessness.external.callables import Answered, ask, find_callable, judged_part


@pytest.mark.parametrize("name", ["no_colon", ":f", "m:", ""])
def test_a_name_without_module_and_function_is_refused_with_an_example(name):
    with pytest.raises(SpecError, match="module:function"):
        find_callable(name)


@pytest.mark.parametrize(
    ("name", "words"),
    [("no_such_module_at_all:f", "cannot be imported"), ("math:nothing", "has no 'nothing'"), ("math:pi", "is float, not a")],
)
def test_what_cannot_be_called_is_named(name, words):
    with pytest.raises(SpecError, match=words):
        find_callable(name)


def test_a_module_of_the_working_folder_is_found_and_the_path_is_left_as_it_was(tmp_path, monkeypatch):
    (tmp_path / "decoder_of_a_test.py").write_text("def answer(ids, n, seed):\n    return ids[:n]\n")
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    assert find_callable("decoder_of_a_test:answer")([5, 6], 1, 0) == [5]
    assert sys.path == before


def test_a_module_that_fails_is_reported_without_its_traceback(tmp_path, monkeypatch):
    (tmp_path / "broken_decoder_of_a_test.py").write_text("raise RuntimeError('no weights')\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SpecError, match="RuntimeError: no weights"):
        find_callable("broken_decoder_of_a_test:answer")


def test_tensors_and_lists_are_taken_and_fewer_ids_too():
    assert ask(lambda ids, n, seed: torch.tensor([3, 1]), [0], 4, 0, 5).tokens == (3, 1)
    assert ask(lambda ids, n, seed: [], [0], 4, 0, 5).tokens == ()
    assert ask(lambda ids, n, seed: [np.int64(3), np.int32(1)], [0], 4, 0, 5).tokens == (3, 1)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ([9], "returned 9"),
        (["a"], "returned 'a', of type str"),
        ([True], "returned True, of type bool"),
        ([1.0], "returned 1.0, of type float"),
        (torch.tensor([[1, 0]]), "of type list"),
        ([0, 1, 2, 3], "the prompt comes with them"),
        ([4, 4, 4], "too many"),
        (None, "fails"),
    ],
)
def test_wrong_answers_are_named(answer, words):
    with pytest.raises(PluginError, match=words):
        ask(lambda ids, n, seed: answer, [0, 1], 2, 0, 5)


def test_a_module_and_a_function_that_leave_the_process_do_not_end_in_silence(tmp_path, monkeypatch):
    (tmp_path / "leaving_decoder_of_a_test.py").write_text("import sys\nsys.exit(0)\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SpecError, match="cannot be imported: SystemExit: 0"):
        find_callable("leaving_decoder_of_a_test:answer")
    with pytest.raises(PluginError, match="fails: SystemExit: 0"):
        ask(lambda ids, n, seed: sys.exit(0), [0], 1, 0, 5)


def test_an_answer_is_judged_up_to_its_stop_token_said_or_not():
    assert judged_part((3, 7, 4), 3, {7}) == Answered((3, 7))
    assert judged_part((3, 4), 2, {7}) == Answered((3, 4))
    assert judged_part((3,), 2, {9, 7}) == Answered((3, 7), stop_left_out=True)
    assert judged_part((), 2, {7}) == Answered((7,), stop_left_out=True)
    with pytest.raises(PluginError, match="returned 1 of 2 ids"):
        judged_part((3,), 2, ())


def test_a_function_that_fails_is_named():
    def broken(ids, n, seed):
        raise KeyError("cache")

    with pytest.raises(PluginError, match=r"broken' fails: KeyError"):
        ask(broken, [0], 1, 0, 5)
