"""How one that is behind catches up with the loops of the others."""

from __future__ import annotations

import pytest

from roundelay.user_loop.course import CannotComeBack, Course


def ahead(loops: int, *, own: bool = False, shared: bool = True, rests: bool = False) -> Course:
    course = Course(joined=True)
    for number in range(loops):
        course.begin(10 * number, shared=shared, own=own, order=[[1, 2], [3]])
        if number < loops - 1 or rests:
            course.rest()
    return course


def test_who_is_further() -> None:
    standings = [Course(), ahead(0), ahead(1), ahead(1, rests=True), ahead(2)]
    assert [each.rank for each in standings] == sorted(each.rank for each in standings)
    assert len({each.rank for each in standings}) == 5


def test_loops_that_are_over_are_skipped_and_the_current_one_is_entered() -> None:
    course = Course()
    course.catch_up(ahead(3).encode())
    assert course.joined
    ways = []
    while (way := course.way()) == "skip":
        ways.append(way)
        course.skip()
    assert (ways, way) == (["skip", "skip"], "enter")
    loop = course.enter()
    assert (loop.first, loop.order, course.now.loops) == (20, [[1, 2], [3]], 3)
    course.rest()
    assert course.way() == "together"


@pytest.mark.parametrize("others", [ahead(2, own=True), ahead(2, rests=True)])
def test_one_waits_for_the_next_loop(others: Course) -> None:
    course = Course()
    course.catch_up(others.encode())
    course.skip()
    assert course.way() == "skip"
    course.skip()
    assert not course.is_behind
    assert course.way() == "together"


def test_epochs_begin_where_the_others_are() -> None:
    others = ahead(4, rests=True)
    others.begin_epoch()
    others.now.epochs = 2
    others.begin(40, shared=True, own=False, order=None)
    course = Course()
    assert course.begin_late(others.encode()) == 2
    course.note_published(others.encode())
    assert course.way() == "enter"


def test_a_loop_without_share_cannot_be_entered() -> None:
    with pytest.raises(CannotComeBack, match="without share"):
        Course().catch_up(ahead(1, shared=False).encode())
    with pytest.raises(CannotComeBack, match="without share"):
        Course().note_published(ahead(1, shared=False).encode())
