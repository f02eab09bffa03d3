"""Which tests may run beside which, when pytest-xdist shares them between workers (``make test``)."""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

ONE_BY_ONE = (
    "tests/cli/test_calibrate.py::test_record_here",
    "tests/cli/test_compare.py",
    "tests/cli/test_demo.py::test_a_miniature",
    "tests/cli/test_replay.py",
    "tests/cli/test_resume.py",
    "tests/cli/test_train.py",
    "tests/runtimes/test_gloo_post.py",
    "tests/runtimes/test_hosts.py",
    "tests/runtimes/test_launch.py",
    "tests/runtimes/test_membership.py",
    "tests/runtimes/test_mpi.py",
    "tests/runtimes/test_partition.py",
    "tests/runtimes/test_peers.py",
    "tests/runtimes/test_processes.py",
    "tests/runtimes/test_rejoining.py",
    "tests/runtimes/test_shared_memory.py",
    "tests/runtimes/test_slurm.py",
    "tests/strategies/test_contract_processes.py",
    "tests/study/test_scheduler.py",
    "tests/tasks/test_every_model.py::test_on_two_processes",
    "tests/test_fingerprint.py::test_on_processes",
    "tests/test_joining.py::test_a_loop_of_ones_own",
    "tests/test_joining.py::test_loops_after_one_another",
    "tests/test_joining.py::test_the_example",
    "tests/test_keeping.py::test_processes",
    "tests/test_pretraining.py::test_processes",
    "tests/test_pretraining.py::test_ranks",
)
"""Tests that start learners on processes, kill and stop them, or measure how long something takes: how they begin."""


class Shares(LoadScopeScheduling):  # type: ignore[misc]  # it has no annotations
    """Give one worker all tests that run one by one, first of all, and the others file by file."""

    def _split_scope(self, nodeid: str) -> str:
        return "one by one" if nodeid.startswith(ONE_BY_ONE) else nodeid.partition("::")[0]
