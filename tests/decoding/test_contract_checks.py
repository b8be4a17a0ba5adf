"""What a drafter answers, looked at again when it was changed in place."""

import pytest
import torch

from specdec.decoding.contract_checks import ProposalCheck
from specdec.errors import PluginError
from specdec.interfaces.proposals import Distributions


def test_a_vocabulary_that_was_right_and_is_changed_in_place_is_looked_at_again():
    ids = torch.tensor([0, 2, 3])
    check = ProposalCheck("mine", vocab_size=4)
    answer = Distributions(torch.zeros(1, 3), target_ids=ids)
    assert check.check(answer, 1) is answer
    ids[0] = 3
    with pytest.raises(PluginError, match="two columns of logits to the same target id"):
        check.check(answer, 1)
