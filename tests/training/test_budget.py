"""Every minibatch is trained exactly once, whoever takes it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from roundelay.errors import SettingsError
from roundelay.training.budget import Budget, ClaimQueue, untrained


def everyone_takes(left: Sequence[int], groups: list[list[int]], budget: Budget) -> dict[int, list[int | None]]:
    """Let all learners take their minibatches, in rounds where they know them, from one counter where not."""
    taken: dict[int, list[int | None]] = {}
    counter = 0
    shard_of = budget.shard_of if budget.shards is not None else None
    claims = {learner: ClaimQueue(left, groups, learner, shard_of) for group in groups for learner in group}
    active = list(groups)
    while active:
        for group in list(active):
            first = claims[group[0]]
            base = first.next_base() if not first.counted else counter
            counter += len(group) if first.counted else 0
            made = [claims[learner].take(base) for learner in group]
            if made[0] is None:
                assert all(claim is None for claim in made)
                active.remove(group)
                continue
            assert len({claim.position for claim in made if claim}) == 1
            for learner, claim in zip(group, made, strict=True):
                assert claim is not None
                taken.setdefault(learner, []).append(claim.number)
    return taken


@pytest.mark.parametrize("shards", [None, 4])
@pytest.mark.parametrize("groups", [[[0, 1, 2, 3]], [[0], [1], [2], [3]], [[0, 1, 2], [3]]])
def test_ten_minibatches_on_four_learners(groups: list[list[int]], shards: int | None) -> None:
    budget = Budget(10, 30, shards=shards)
    for epoch in range(3):
        taken = everyone_takes(range(10 * epoch, 10 * epoch + 10), groups, budget)
        numbers = Counter(n for mine in taken.values() for n in mine if n is not None)
        assert numbers == Counter(range(10 * epoch, 10 * epoch + 10))
        for group in groups:  # those that step together take the same number of steps
            assert len({len(taken.get(learner, [])) for learner in group}) == 1


def test_private_shards_are_kept_from_epoch_to_epoch() -> None:
    budget = Budget(10, 20, shards=4)
    first = everyone_takes(range(10), [[0, 1, 2, 3]], budget)
    second = everyone_takes(range(10, 20), [[0, 1, 2, 3]], budget)
    for learner in range(4):
        assert [n % 10 for n in first[learner] if n is not None] == [n % 10 for n in second[learner] if n is not None]
    assert [len([n for n in mine if n is not None]) for mine in first.values()] == [3, 3, 2, 2]


def test_a_lost_learners_shard_is_taken_by_the_others() -> None:
    budget = Budget(10, 20, shards=4)
    taken = everyone_takes(range(10), [[0, 1, 2]], budget)
    assert Counter(n for mine in taken.values() for n in mine if n is not None) == Counter(range(10))


def test_the_run_is_cut_at_epochs_evaluations_and_the_warm_up() -> None:
    stretches = Budget(minibatches_per_epoch=10, total=25, evaluate_every=4, warmup=6).intervals()
    assert [(s.begin, s.end) for s in stretches] == [
        (0, 4),
        (4, 6),
        (6, 8),
        (8, 10),
        (10, 12),
        (12, 16),
        (16, 20),
        (20, 24),
        (24, 25),
    ]
    assert [s.warmup for s in stretches] == [True, True] + [False] * 7
    assert [s.end for s in stretches if s.evaluate] == [4, 8, 12, 16, 20, 24, 25]


def test_left_over() -> None:
    assert untrained([(3, 9)], [[3, 5], [8], [12]]) == [(4, 5), (6, 8)]
    assert untrained([(4, 5), (6, 8)], [[6], [3]]) == [(4, 5), (7, 8)]
    assert untrained([(0, 10**9)], []) == [(0, 10**9)]
    assert untrained([], [[1]]) == []


@pytest.mark.parametrize("settings", [{"total": 0}, {"minibatches_per_epoch": 0}, {"evaluate_every": 0}])
def test_empty_budgets_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(SettingsError, match="must be at least 1, not 0"):
        Budget(**{"minibatches_per_epoch": 1, "total": 1} | settings)
