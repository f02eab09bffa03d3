"""What the launcher of a script sees and tells in the store."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from roundelay.runtimes.processes.transport.key_value_store import KeyValueStore, start_store
from roundelay.user_loop.launched_loops import LaunchedLoops


@pytest.fixture
def store() -> Iterator[KeyValueStore]:
    made, _ = start_store()
    yield made
    made.close()


def test_a_loss_is_told_to_every_loop_with_the_servers_of_that_process(store: KeyValueStore) -> None:
    loops = LaunchedLoops(store, 3)
    assert len(loops) == 0
    assert not loops.joined(0)
    store.set("loop/0", 0)
    store.set("loop/1", 2)
    for rank in range(3):
        store.add(f"loop 0/beat/{rank}", 1)
    store.set("loop 1/members/0", {"members": [0, 1, 2, 3, 4]})
    assert len(loops) == 2
    assert loops.joined(1)
    assert not loops.left(1)
    loops.report_end(1, "gone")
    assert store.get("loop 0/dead/1") == store.get("loop 1/dead/3") == store.get("loop 1/dead/1") == "gone"
    assert store.get("loop 1/end/0") == "gone"
    assert not store.has("loop 1/dead/0")


def test_one_that_ended_before_a_loop_began_is_missed_there(store: KeyValueStore) -> None:
    loops = LaunchedLoops(store, 2)
    loops.report_absence(1, "gone")
    store.set("loop/0", 0)
    loops.report_absence(1, "gone")
    assert store.get("loop 0/dead/1") == "gone"


def test_one_that_has_left_is_not_lost(store: KeyValueStore) -> None:
    loops = LaunchedLoops(store, 2)
    store.set("loop/0", 0)
    store.add("loop 0/beat/0", 1)
    store.set("loop 0/id/0", 7)
    store.set("loop 0/done/7", True)
    assert loops.left(0)
    assert not loops.left(1)
    assert not loops.is_finished()
    store.set("loop 0/finished", True)
    assert loops.left(1), "it came too late"
    assert loops.is_finished()
    loops.report_end(0, "gone")
    assert not store.has("loop 0/dead/7")


def test_folders_of_records_are_known(store: KeyValueStore) -> None:
    loops = LaunchedLoops(store, 2)
    store.set("loop/0", 0)
    store.set("loop/1", 0)
    store.set("records/1", "runs/a")
    assert loops.record_folders() == ["runs/a"]
