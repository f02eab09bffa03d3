"""Stores: what is written is read, without copies, and nothing half-written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from roundelay.errors import DataError
from roundelay.files import read_json, replacing, write_json, write_text
from roundelay.speech.features import array_store
from roundelay.speech.features.array_store import (
    ArrayStore,
    rewrite_shard,
    shard_name,
    write_index,
    write_shard,
    write_store,
)

Arrays = dict[str, npt.NDArray[np.float32]]


def arrays(number: int = 7, dim: int = 3) -> Arrays:
    random = np.random.default_rng(0)
    return {
        f"utt{i}": random.standard_normal((int(random.integers(0, 9)), dim)).astype(np.float32) for i in range(number)
    }


def test_round_trip_over_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array_store, "UTTERANCES_PER_SHARD", 3)
    data = arrays()
    store = write_store(tmp_path / "s", data.items(), dim=3)
    assert list(store) == list(data)
    assert sorted(path.name for path in (tmp_path / "s").iterdir()) == [
        "index.json",
        *(shard_name(i) for i in range(3)),
    ]
    for name, array in data.items():
        assert np.array_equal(store[name], array)
    assert store.num_rows == sum(map(len, data.values()))
    assert store.shards.tolist() == [0, 0, 0, 1, 1, 1, 2]
    store.verify()
    assert "utt3" in store
    assert "nobody" not in store
    assert dict(ArrayStore(tmp_path / "s").items()).keys() == data.keys()


@pytest.mark.parametrize("number", [0, 3, 6])
def test_whole_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(array_store, "UTTERANCES_PER_SHARD", 3)
    data = arrays(number)
    store = write_store(tmp_path / "s", data.items(), dim=3)
    assert len(store) == number
    assert all(np.array_equal(store[name], data[name]) for name in data)
    assert len(list((tmp_path / "s").glob("*.raw"))) == max(1, number // 3)


def test_reading_copies_nothing(tmp_path: Path) -> None:
    store = write_store(tmp_path / "s", [("a", np.ones((4, 2))), ("b", np.zeros((5, 2)))], dim=2)
    assert np.shares_memory(store["a"], store.shard(0))
    assert np.shares_memory(store["b"], store.shard(0))
    assert not store["a"].flags.writeable
    assert store["a"].flags.c_contiguous


def mapped_kilobytes(folder: Path) -> int:
    """Add up what is resident of this process's maps of files in a folder."""
    total, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if line.split("-")[0].isalnum() and "-" in line.split()[0]:
            inside = str(folder) in line
        elif inside and line.startswith("Rss:"):
            total += int(line.split()[1])
    return total


def test_released_pages_are_no_longer_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = {f"u{i}": np.full((1000, 40), i, np.float32) for i in range(20)}
    store = write_store(tmp_path / "s", data.items(), dim=40)
    views = {name: store[name] for name in store}
    assert sum(float(view.sum()) for view in views.values()) == 190 * 40_000
    assert mapped_kilobytes(tmp_path) >= 20 * 156
    store.release()
    assert mapped_kilobytes(tmp_path) == 0
    assert all(np.array_equal(views[name], data[name]) for name in data)
    monkeypatch.setattr(array_store, "_MAPPED_BYTES", 500_000)
    store.release()
    for name in store:
        store[name].sum()
        assert mapped_kilobytes(tmp_path) < 1500


def test_single_numbers(tmp_path: Path) -> None:
    store = write_store(tmp_path / "s", [("a", np.arange(4)), ("b", np.arange(3))], dim=0, dtype="int32")
    assert store["b"].tolist() == [0, 1, 2]
    assert store["b"].dtype == np.int32


def test_without_an_index_there_is_no_store(tmp_path: Path) -> None:
    write_shard(tmp_path, 0, "float32", arrays().items())
    with pytest.raises(DataError, match=r"no complete store \(index.json is missing\)"):
        ArrayStore(tmp_path)


def test_an_interrupted_rewrite_leaves_no_store(tmp_path: Path) -> None:
    write_store(tmp_path / "s", arrays().items(), dim=3)

    def failing() -> object:
        yield "utt0", np.ones((2, 3), np.float32)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_store(tmp_path / "s", failing(), dim=3)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="no complete store"):
        ArrayStore(tmp_path / "s")


def test_a_truncated_shard_is_named(tmp_path: Path) -> None:
    write_store(tmp_path / "s", arrays().items(), dim=3)
    shard = tmp_path / "s" / shard_name(0)
    size = shard.stat().st_size
    shard.write_bytes(shard.read_bytes()[:-4])
    with pytest.raises(DataError, match=rf"shard-00000.raw: {size - 4} bytes instead of {size}"):
        ArrayStore(tmp_path / "s")
    shard.unlink()
    with pytest.raises(DataError, match=r"shard-00000.raw: 0 bytes"):
        ArrayStore(tmp_path / "s")


def test_a_changed_byte_is_found(tmp_path: Path) -> None:
    write_store(tmp_path / "s", arrays().items(), dim=3)
    shard = tmp_path / "s" / shard_name(0)
    data = bytearray(shard.read_bytes())
    data[10] ^= 1
    shard.write_bytes(data)
    with pytest.raises(
        DataError, match=r"shard-00000.raw: damaged: its sha256 is not that in index.json; run roundelay prepare"
    ):
        ArrayStore(tmp_path / "s").verify()


def test_a_strange_index_is_named(tmp_path: Path) -> None:
    write_json(tmp_path / "index.json", {"format": 99})
    with pytest.raises(DataError, match=r"index.json: not an index that this version reads"):
        ArrayStore(tmp_path)
    write_text(tmp_path / "index.json", "{")
    with pytest.raises(DataError, match=r"index.json: not JSON"):
        ArrayStore(tmp_path)


def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    (tmp_path / shard_name(0)).symlink_to("/dev/full")
    with pytest.raises(DataError, match=r"shard-00000.raw: cannot be written: No space left on device"):
        write_shard(tmp_path, 0, "float32", arrays().items())
    assert list(tmp_path.iterdir()) == []


def test_a_shard_is_rewritten_in_place(tmp_path: Path) -> None:
    data = arrays()
    shard = write_shard(tmp_path, 0, "float32", data.items())
    shard = rewrite_shard(tmp_path, 0, shard, 3, lambda name, x: x * 2 + len(name))
    write_index(tmp_path, [shard], 3, "float32")
    store = ArrayStore(tmp_path)
    store.verify()
    for name, array in data.items():
        assert np.array_equal(store[name], array * 2 + len(name))


def test_an_utterance_is_stored_once(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="stored twice"):
        write_store(tmp_path / "s", [("a", np.ones((1, 1)))] * 2, dim=1)


def test_files_are_whole_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_json(path, {"a": 1})

    def fail() -> None:
        with replacing(path) as partial:
            partial.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert read_json(path) == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]
