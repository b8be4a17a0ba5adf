"""The names of transformers' ways of decoding."""

import pytest

from specdec.bench.baselines import peer_of
from specdec.errors import SpecError


@pytest.mark.parametrize(("name", "lookup"), [("transformers-lookup", 10), ("transformers-lookup-3", 3)])
def test_the_name_of_prompt_lookup_says_how_much_it_drafts(name, lookup):
    assert peer_of(name).lookup == lookup


@pytest.mark.parametrize("name", ["transformers-lookup-0", "transformers-lookup-x", "lookup"])
def test_other_names_are_none(name):
    with pytest.raises(SpecError, match="no peer is called"):
        peer_of(name)
