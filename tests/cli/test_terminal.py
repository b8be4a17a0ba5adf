import json
import warnings

import pytest

from specdec.cli.terminal import guarded, print_json
from specdec.errors import SpecdecWarning


@guarded
def doubtful(category):
    warnings.warn("the draft model has no tokenizer", category, stacklevel=2)


def test_our_own_warnings_are_one_line_each_time(capsys):
    doubtful(SpecdecWarning)
    doubtful(SpecdecWarning)
    assert capsys.readouterr().err == "specdec: warning: the draft model has no tokenizer\n" * 2


def test_the_warnings_of_others_are_left_as_they_were():
    before = warnings.showwarning
    with pytest.raises(DeprecationWarning):
        doubtful(DeprecationWarning)
    with pytest.warns(DeprecationWarning, match="no tokenizer"):
        doubtful(DeprecationWarning)
    assert warnings.showwarning is before


def test_json_reads_back_and_has_no_character_that_steers_a_terminal(capsys):
    value = {"text": "a\u009b31mb\u202ec\nd é"}
    print_json(value)
    shown = capsys.readouterr().out
    assert json.loads(shown) == value
    assert not any(0x7F <= ord(letter) <= 0x9F or letter == "\u202e" for letter in shown)
    assert "é" in shown
