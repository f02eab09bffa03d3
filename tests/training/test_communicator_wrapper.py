"""Every operation of a wrapped communicator is wrapped, in groups that are split off too."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import torch

from lone_member import LoneMember
from roundelay.communicator import Communicator
from roundelay.strategies import ADPSGD
from roundelay.training.communicator_wrapper import WrappedCommunicator

OPERATIONS: dict[str, Callable[[Communicator], Awaitable[Any]]] = {
    "mean": lambda comm: comm.mean(torch.ones(16)),
    "gather": lambda comm: comm.gather(torch.ones(16)),
    "broadcast": lambda comm: comm.broadcast(torch.ones(16), root=0),
    "exchange": lambda comm: comm.exchange(torch.ones(16), to=0, source=0),
    "request": lambda comm: comm.request(torch.ones(16), to=0),
}


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_is_wrapped_once_and_gives_its_result(name: str, *, split: bool) -> None:
    member, wrapped = LoneMember(ADPSGD(), torch.nn.Linear(3, 1, bias=False)), []
    member.start_strategy(warmup=False)

    def wrap(operation: Awaitable[Any]) -> Awaitable[Any]:
        wrapped.append(operation)
        return operation

    comm: Communicator = WrappedCommunicator(member.world, wrap)
    comm = comm.split([[0]]) if split else comm
    assert (comm.rank, comm.size) == (0, 1)

    async def call() -> Any:
        return await OPERATIONS[name](comm)

    result = member.alone.run(call())
    assert len(wrapped) == 1
    assert (result[0] if name == "gather" else result).numel() == 16
