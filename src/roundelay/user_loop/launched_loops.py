"""The joined loops of a launched script, as its launcher sees them in the store."""

from __future__ import annotations

from collections.abc import Iterator

from roundelay.runtimes.processes.membership import announce_end, current_id, latest_members, report_death
from roundelay.runtimes.processes.transport.key_value_store import KeyValueStore


class LaunchedLoops:
    """Every `join` of the script is a loop with a membership of its own, whose keys begin with its number.

    A process has the rank of its learner there, and those of the servers that it hosts.
    """

    def __init__(self, store: KeyValueStore, learners: int) -> None:
        self._store, self._learners = store, learners
        self._servers: list[int] = []  # by loop
        self._told: set[tuple[int, int]] = set()  # loops and ranks

    def __len__(self) -> int:
        """Return how many loops have begun."""
        while (servers := self._store.get(f"loop/{len(self._servers)}")) is not None:
            self._servers.append(int(servers))
        return len(self._servers)

    def _each(self, learner: int) -> Iterator[tuple[int, KeyValueStore, list[int]]]:
        """Return every loop's number, its keys, and the ranks of a learner's process there: its own the first."""
        for number in range(len(self)):
            servers = self._servers[number]
            ranks = [servers + learner, *range(learner, servers, self._learners)]
            yield number, self._store.with_prefix(f"loop {number}"), ranks

    def joined(self, learner: int) -> bool:
        """Return whether a learner has joined any loop."""
        return any(keys.has(f"beat/{ranks[0]}") for _, keys, ranks in self._each(learner))

    def left(self, learner: int) -> bool:
        """Return whether a learner has left every loop as it should, or has come too late for it."""
        return all(
            bool(keys.present([f"done/{current_id(keys, ranks[0])}", "finished"]))
            for _, keys, ranks in self._each(learner)
        )

    def is_finished(self) -> bool:
        """Return whether there are loops, and all have come to their end."""
        count = len(self)
        return count > 0 and all(self._store.has(f"loop {number}/finished") for number in range(count))

    def report_end(self, learner: int, reason: str) -> None:
        """Tell every loop that a learner's process has ended."""
        for number, keys, ranks in self._each(learner):
            for rank in ranks:
                now = current_id(keys, rank)
                self._told.add((number, rank))
                if not keys.present([f"dead/{now}", f"done/{now}"]):
                    report_death(keys, rank, reason)

    def report_absence(self, learner: int, reason: str) -> None:
        """Tell every loop that has begun since of a learner that ended before it: nobody waits for it there."""
        for number, keys, ranks in self._each(learner):
            for rank in ranks:
                if (number, rank) not in self._told:
                    self._told.add((number, rank))
                    keys.set(f"dead/{rank}", reason)
                    newest = latest_members(keys)
                    if newest is not None and rank in newest[1]:
                        announce_end(keys, *newest, reason)

    def record_folders(self) -> list[str]:
        """Return the folders in which loops leave records."""
        return [folder for n in range(len(self)) if (folder := self._store.get(f"records/{n}")) is not None]
