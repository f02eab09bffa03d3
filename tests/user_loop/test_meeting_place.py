"""Where the processes of a user loop agree on a store."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from roundelay.errors import CommunicationError
from roundelay.runtimes.processes.environment import World
from roundelay.runtimes.processes.transport.key_value_store import start_store
from roundelay.user_loop.meeting_place import Meeting, StorePlace, meet, meet_in_file, meeting_file, on_one_host


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    return tmp_path / f"roundelay-{os.getuid()}"


def never(rank: int) -> bool:
    return False


def world(rank: int) -> World:
    return World(rank, 2, ("localhost", 29500), store_exists=True, local_ranks=(0, 1))


def test_processes_of_one_host_meet_in_a_file_that_is_gone_then(folder: Path) -> None:
    assert on_one_host(world(0))
    met: list[Meeting] = []
    first = threading.Thread(target=lambda: met.append(meet_in_file(world(0), never)))
    first.start()
    second = meet_in_file(world(1), never)
    first.join(30)
    second.store.set("key", 5)
    assert met[0].store.get("key") == 5
    assert list(folder.iterdir()) == []
    assert folder.stat().st_mode & 0o777 == 0o700


def test_the_file_of_a_job_that_was_killed_leads_nowhere() -> None:
    left, port = start_store("127.0.0.1", secret=b"another")
    meeting_file(world(0)).write_text(f'["127.0.0.1", {port}, "00"]')
    waiting, met = threading.Event(), list[Meeting]()

    def has_ended(rank: int) -> bool:
        waiting.set()
        return False

    second = threading.Thread(target=lambda: met.append(meet_in_file(world(1), has_ended)))
    second.start()
    assert waiting.wait(30)
    first = meet_in_file(world(0), never)
    second.join(30)
    first.store.set("key", 5)
    assert met[0].store.get("key") == 5
    left.close()


def test_nobody_waits_for_a_process_that_has_ended() -> None:
    for rank in (0, 1):
        with pytest.raises(CommunicationError, match=f"rank {1 - rank} has ended before it called join"):
            meet_in_file(world(rank), lambda _: True)
    store, _ = start_store()
    with pytest.raises(CommunicationError, match="rank 0 has ended before it called join"):
        meet(1, 2, StorePlace(store, lambda _: True))


def test_a_folder_of_another_users_is_not_used(folder: Path) -> None:
    folder.mkdir(mode=0o755)
    assert not on_one_host(world(0))


def test_processes_of_several_hosts_meet_by_the_store_of_their_launcher() -> None:
    store, _ = start_store()
    met: list[Meeting] = []
    first = threading.Thread(target=lambda: met.append(meet(0, 2, StorePlace(store.clone(), never))))
    first.start()
    second = meet(1, 2, StorePlace(store, never))
    first.join(30)
    second.store.set("key", 5)
    assert met[0].store.get("key") == 5
    assert second.address == met[0].address == "127.0.0.1", "both are on this host"
