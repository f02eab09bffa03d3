"""Where learners of a user loop write how many acts they have done."""

from __future__ import annotations

from roundelay.runtimes.blocking import run_blocking
from roundelay.user_loop.act_board import Done, SharedWords


def test_a_number_says_all() -> None:
    for done in Done(), Done(5, 3), Done(1, 2**28 - 1, waiting=True):
        assert Done.of(done.word) == done


def test_learners_of_one_host_read_each_others_words() -> None:
    one, other = SharedWords(), SharedWords()
    addresses = [one.address, other.address]
    assert one.open(addresses)
    assert other.open(addresses)
    mine, theirs = one.board(3), other.board(3)
    run_blocking(mine.write(Done(7, 2, waiting=True)))
    assert run_blocking(theirs.read([0])) == [Done(7, 2, waiting=True)]
    assert run_blocking(other.board(4).read([0])) == [Done()], "it has not begun that loop yet"
    assert run_blocking(mine.read([1])) == [Done()]
    one.close()
    one.close()
    run_blocking(mine.write(Done(8)))
    assert run_blocking(theirs.read([0])) == [Done(8)]
    other.close()


def test_words_of_another_host_or_of_none_cannot_be_read() -> None:
    words = SharedWords()
    assert not words.open([words.address, None])
    assert not words.open([words.address, ["another host", 1, 2]])
    assert not words.open([words.address, [*words.address[:2], 10_000]])
    words.close()
