"""Which world the variables of torchrun and Slurm describe."""

from __future__ import annotations

import pytest

from roundelay.errors import CommunicationError, SettingsError
from roundelay.runtimes.processes import environment
from roundelay.runtimes.processes.environment import first_of


def test_the_world_by_torchrun() -> None:
    world = environment.find({"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"})
    assert world is not None
    assert (world.rank, world.size, world.store_address, world.store_exists) == (1, 4, ("127.0.0.1", 29500), False)
    assert world.address == "127.0.0.1"
    with pytest.raises(SettingsError, match="not MASTER_ADDR"):
        environment.find({"RANK": "1", "WORLD_SIZE": "4"})


def test_the_world_by_slurm() -> None:
    said = {
        "SLURM_PROCID": "3", "SLURM_NTASKS": "8", "SLURM_STEP_ID": "0", "SLURM_JOB_ID": "123456",
        "SLURM_JOB_NODELIST": "gpu[03-05,9]",
    }  # fmt: skip
    world = environment.find(said)
    assert world is not None
    assert (world.rank, world.size, world.store_address) == (3, 8, ("gpu03", 20_000 + 123456 % 20_000))


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("a,b", "a"), ("gpu[03-05,9],cpu1", "gpu03"), ("n[7,9]", "n7"), ("r1n[2-3]s,x", "r1n2s"), ("a-b1,c", "a-b1")],
)  # fmt: skip
def test_the_first_host_of_slurm(nodes: str, first: str) -> None:
    assert first_of(nodes) == first


def test_a_first_host_that_nobody_knows() -> None:
    said = {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_STEP_ID": "0", "SLURM_JOB_NODELIST": "nobody.invalid"}
    world = environment.find(said)
    assert world is not None
    with pytest.raises(CommunicationError, match=r"rank 1: nobody.invalid: .*; set MASTER_ADDR to an address of the"):
        world.connect(5.0)
