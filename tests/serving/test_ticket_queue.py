"""Who is served next: first come first served, within places and memory."""

import math
import time

import pytest

from specdec.decoding.requests import Request
from specdec.serving.api_error import ApiError
from specdec.serving.ticket import Ticket
from specdec.serving.ticket_queue import TicketQueue


def ticket(tokens=10, n=1, waits=100.0):
    now = time.monotonic()
    return Ticket("m", Request([1], n=n), tokens, streams=False, deadline=now + 100, queue_deadline=now + waits)


def queue(most=10, places=4, slots=math.inf):
    return TicketQueue(most, places, slots)


def test_none_overtakes_another():
    line, first, wide, narrow = queue(), ticket(n=2), ticket(n=3), ticket(n=1)
    line.submit([first, wide, narrow])
    assert line.take_fitting() == [first]
    line.give_back(first)
    assert line.take_fitting() == [wide, narrow]
    assert (line.free_places, len(line)) == (0, 0)


def test_every_row_counts_as_wide_as_the_widest():
    line, short, long, third = queue(slots=100), ticket(10), ticket(40), ticket(40)
    line.submit([short, long, third])
    assert line.take_fitting() == [short, long]
    assert line.used_share == 0.8
    line.give_back(short)
    assert line.take_fitting() == [third]


def test_a_batch_that_was_wide_runs_empty_before_it_is_filled_again():
    line, long = queue(slots=100), ticket(50)
    short = [ticket(10) for _ in range(4)]
    line.submit([long, *short])
    assert line.take_fitting() == [long, short[0]]
    line.give_back(long)
    assert line.take_fitting() == [short[1]]
    line.give_back(short[0])
    assert line.take_fitting() == []
    line.give_back(short[1])
    assert line.take_fitting() == short[2:]


def test_all_of_a_call_wait_or_none():
    line = queue(most=1, places=1)
    line.submit([ticket(), ticket()])
    with pytest.raises(ApiError) as refused:
        line.submit([ticket()])
    assert refused.value.status == 429
    assert len(line) == 2
    line.take_fitting()
    with pytest.raises(ApiError):
        line.submit([ticket(), ticket()])
    assert len(line) == 1


@pytest.mark.parametrize("never", [ticket(tokens=101), ticket(tokens=30, n=4), ticket(n=5)])
def test_what_never_fits_is_refused_at_once(never):
    line = queue(slots=100)
    with pytest.raises(ApiError) as refused:
        line.submit([never])
    assert refused.value.status == 400
    assert not len(line)


def test_those_that_gave_up_and_those_that_waited_too_long_leave_the_line():
    line, gone, late, waiting = queue(), ticket(), ticket(waits=-1.0), ticket()
    line.submit([gone, late, waiting])
    line.cancel([gone])
    assert line.take_cancelled() == {gone}
    assert line.take_late() == [late]
    assert line.take_fitting() == [waiting]
    line.give_back(waiting)
    line.cancel([waiting])
    assert line.take_cancelled() == set()


def test_the_time_to_come_again_grows_with_the_line_and_with_how_long_answers_take():
    line = queue(most=1000, places=2)
    empty = line.retry_after()
    line.submit([ticket() for _ in range(20)])
    assert empty < line.retry_after() <= 60
    slow = line.take_fitting()[0]
    slow.began = time.monotonic() - 1000
    before = line.retry_after()
    line.give_back(slow)
    assert line.retry_after() > before


def test_in_shutdown_nothing_is_taken():
    line = queue()
    line.drain()
    with pytest.raises(ApiError) as refused:
        line.submit([ticket()])
    assert refused.value.status == 503
