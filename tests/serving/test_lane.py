"""A decoder's batch in the decode thread: a fault is that of the ticket that has it, and of no other."""

import math
import time

import pytest

from specdec.decoding.requests import Request
from specdec.errors import PluginError
from specdec.serving.lane import Lane
from specdec.serving.ticket import Ticket
from specdec.targets.tabular import Tabular, TabularTargetOptions

BAD = [1, 7]


class Picky(Tabular):
    """A table that cannot read one prompt."""

    def prefill(self, prompts, features):
        if BAD in [list(prompt) for prompt in prompts]:
            raise RuntimeError("cannot read this")
        return super().prefill(prompts, features)


class Losing(Tabular):
    """A table that loses a row when others join."""

    def join(self, state, other):
        super().join(state, other)
        raise RuntimeError("the state is half changed")


def options():
    return TabularTargetOptions(vocab=8, random={"order": 2, "seed": 1})


def ticket(prompt, *, streams=True, n=1, tokens=8):
    request = Request(prompt, n=n, max_new_tokens=tokens, seed=3, sampling={"temperature": 1.0})
    return Ticket("m", request, 20, streams=streams, deadline=math.inf, queue_deadline=math.inf)


def run(lane):
    """All that is told until nothing runs."""
    updates = lane.news()
    while lane.batch.sequences:
        updates += lane.step()[1]
        updates += lane.news()
    return updates


def ends(updates, one):
    return [update.news for update in updates if update.ticket is one and update.ends]


def test_where_one_of_several_prompts_cannot_be_read_the_others_begin(compose, chain_of):
    decoder = compose(Picky(options()), chain_of(3))
    good, bad, other = ticket([1, 2]), ticket(BAD), ticket([3], n=2)
    lane = Lane(decoder)
    updates = lane.begin([good, bad, other])
    assert [update.ticket for update in updates] == [bad]
    assert isinstance(updates[0].news, PluginError)
    updates += run(lane)
    assert ends(updates, good)[0].generation.tokens == decoder.generate(good.request)[0].tokens
    assert [end.generation.tokens for end in ends(updates, other)] == [one.tokens for one in decoder.generate(other.request)]
    assert lane.tickets == []


def test_a_state_that_is_half_changed_is_given_up_with_everything_in_it(compose, chain_of):
    lane = Lane(compose(Losing(options()), chain_of(3)))
    first, second = ticket([1, 2]), ticket([3])
    assert lane.begin([first]) == []
    lane.step()
    updates = lane.begin([second])
    assert {update.ticket for update in updates} == {first, second}
    assert all(isinstance(update.news, PluginError) for update in updates)
    assert lane.begin([third := ticket([4])]) == []
    assert ends(run(lane), third)


def test_who_does_not_stream_is_told_of_the_end_only(compose, table, chain_of):
    lane = Lane(compose(table(), chain_of(3)))
    whole, streamed = ticket([1, 2], streams=False), ticket([1, 2])
    lane.begin([whole, streamed])
    updates = run(lane)
    assert len([update for update in updates if update.ticket is whole]) == 1
    events = [update.news for update in updates if update.ticket is streamed]
    assert len(events) > 1
    assert all(event.tokens for event in events)
    assert tuple(token for event in events for token in event.tokens) == ends(updates, whole)[0].generation.tokens


def test_what_is_dropped_is_told_nothing_more(compose, table, chain_of):
    lane = Lane(compose(table(), chain_of(1)))
    kept, dropped = ticket([1, 2]), ticket([3])
    lane.begin([kept, dropped])
    assert lane.drop({dropped}) == [dropped]
    assert lane.drop({dropped}) == []
    updates = run(lane)
    assert ends(updates, kept)
    assert not ends(updates, dropped)
    assert kept.first_token is not None
    assert kept.first_token <= time.monotonic()


@pytest.mark.parametrize("n", [1, 3])
def test_a_ticket_ends_with_its_last_sample(compose, table, chain_of, n):
    lane = Lane(compose(table(stop_ids=[0]), chain_of(3)))
    one = ticket([1, 2], n=n, tokens=30)
    lane.begin([one])
    updates = run(lane)
    assert sorted(update.sample for update in updates if update.ends) == list(range(n))
    assert lane.tickets == []
