"""Which tests may run beside which, when pytest-xdist shares them between workers (``make test``)."""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

ONE_BY_ONE = (
    "tests/cli/test_calibrate.py::test_record_here",
    "tests/cli/test_compare.py",
    "tests/test_tutorial.py",
    "tests/test_readme.py",
    "tests/cli/test_mistakes.py",
    "tests/cli/test_demo.py::test_a_miniature",
    "tests/cli/test_launch.py",
    "tests/cli/test_replay.py",
    "tests/cli/test_resume.py",
    "tests/cli/test_train.py",
    "tests/experiment/pretraining/test_layer_stages.py::test_processes",
    "tests/experiment/pretraining/test_layer_stages.py::test_ranks",
    "tests/runtimes/mpi/test_mpi_runtime.py",
    "tests/runtimes/processes/test_hosts.py",
    "tests/runtimes/processes/test_launcher.py",
    "tests/runtimes/processes/test_membership.py",
    "tests/runtimes/processes/test_partition.py",
    "tests/runtimes/processes/test_process_runtime.py",
    "tests/runtimes/processes/test_rejoining.py",
    "tests/runtimes/processes/test_slurm.py",
    "tests/runtimes/processes/test_torch_ddp.py",
    "tests/runtimes/processes/transport/test_device_groups.py",
    "tests/runtimes/processes/transport/test_gloo_messages.py",
    "tests/runtimes/processes/transport/test_shared_memory_communicator.py",
    "tests/speech/test_worker_pool.py::test_ctrl_c",
    "tests/strategies/test_contract_device.py",
    "tests/strategies/test_contract_processes.py",
    "tests/study/test_scheduler.py",
    "tests/tasks/test_every_model.py::test_on_two_processes",
    "tests/test_examples.py",
    "tests/test_lightning.py",
    "tests/training/test_device_costs.py",
    "tests/training/test_fingerprint.py::test_on_processes",
    "tests/training/test_model_selection.py::test_processes",
    "tests/user_loop/test_joined_learner.py::test_a_loop_of_ones_own",
    "tests/user_loop/test_joined_learner.py::test_loops_after_one_another",
    "tests/user_loop/test_joined_learner.py::test_the_example",
    "tests/user_loop/test_real_loops.py",
    "tests/user_loop/test_script_launcher.py",
)
"""Tests that start learners on processes, kill and stop them, or measure how long something takes: how they begin."""


class Shares(LoadScopeScheduling):  # type: ignore[misc]  # it has no annotations
    """Give one worker all tests that run one by one, first of all, and the others file by file."""

    def _split_scope(self, nodeid: str) -> str:
        return "one by one" if nodeid.startswith(ONE_BY_ONE) else nodeid.partition("::")[0]
