"""Torch's stores as ours, and ours as one of torch's."""

from __future__ import annotations

import datetime
import os

import pytest

from roundelay.runtimes.processes.transport.key_value_store import c10d, start_store
from roundelay.runtimes.processes.transport.torch_store import (
    _limit_silence,
    connect_torch_store,
    for_torch,
    start_torch_store,
)


def test_limiting_silence_leaves_no_file_open() -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        _limit_silence("10.0.0.1", 1, 5.0)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_store_of_torch() -> None:
    store, port = start_torch_store("127.0.0.1")
    one, other = connect_torch_store("127.0.0.1", port), store.with_prefix("part").clone()
    for number in range(500):  # torch alone: one in 300 is not there yet
        one.set(f"part/{number}", number)
        assert other.get(str(number)) == number
    assert other.setdefault("first", [1]) == one.setdefault("part/first", [2]) == [1]
    assert other.add("count", 2) == one.add("part/count", 0) == 2
    other.append("log", "a ")
    other.append("log", "b")
    assert other.log("log") == "a b"
    assert other.present(["first", "none"]) == {"first"}
    other.delete("first")
    assert other.get("first") is None
    assert other.prove("anything") is None, "it has no secret"
    with pytest.raises(TimeoutError):
        other.wait("never", 0.05)


@pytest.mark.parametrize("start", [start_store, start_torch_store])
def test_torch_sees_a_store(start: object) -> None:
    store, _ = start("127.0.0.1")  # type: ignore[operator]  # one of two functions
    seen = for_torch(store.with_prefix("run"), "group")
    raw = c10d.PrefixStore("inner", seen)  # which calls it as gloo does
    raw.set("key", b"\x00\xff")
    raw.wait(["key"], datetime.timedelta(seconds=5))
    assert raw.get("key") == b"\x00\xff"
    assert raw.check(["key"])
    assert raw.add("count", 3) == 3
    assert store.has("run/group/inner/key")
