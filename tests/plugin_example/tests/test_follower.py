"""What every author of a drafter gets for two lines: `pytest` in the package's folder, with the package installed."""

import pytest
from specdec_plugin_example.follower import Follower, FollowerSession

from specdec.testing import CheckFailed, check_drafter


@pytest.mark.parametrize("candidates", [1, 2])
def test_follower_is_a_sound_drafter(candidates):
    assert check_drafter(Follower, {"candidates": candidates}).largest_tv <= 1e-12


def test_the_check_can_fail():
    class Forgetful(Follower):
        name = "forgetful"
        Options = Follower.Options

        def open(self, starts):
            session = super().open(starts)
            return Stuck(session._rows, session._candidates)

    class Stuck(FollowerSession):
        def keep(self, rows):
            self._rows = self._rows[: len(rows)]

    with pytest.raises(CheckFailed, match="must drop rows by their place"):
        check_drafter(Forgetful)
