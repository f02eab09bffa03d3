"""Servers in the processes of learners."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import roundelay
from roundelay.user_loop.hosted_servers import HostedServers, ServerLearner
from roundelay.user_loop.module_learner import ModuleLearner


def test_a_server_copies_weights_settings_and_state() -> None:
    module = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    module(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    host = ModuleLearner(module, optimizer)
    server = ServerLearner(host)
    assert torch.equal(server.weights, host.weights)
    assert server.optimizer is not optimizer
    optimizer.param_groups[0]["momentum"] = 0.5
    server.frames = 1
    server.grad.zero_()
    server.descend(server.grad)
    assert server.optimizer is not None
    assert server.optimizer.param_groups[0]["momentum"] == 0.5
    assert len(server.optimizer.state) == 2, "with the momentum of the user's"


def test_the_failure_of_a_server_is_raised_beside_it() -> None:
    servers, failed = HostedServers(), list[BaseException]()

    def make() -> None:
        raise ValueError("no place")

    servers.start(make, failed.append)  # type: ignore[arg-type]  # it never returns
    servers.join()
    with pytest.raises(ValueError, match="no place"):
        servers.put(None)
    assert len(failed) == 1


@pytest.mark.parametrize(
    "strategy", [roundelay.EASGD(period=2), roundelay.ASGD(), roundelay.UpdatesASGD(period=2, rate=1.0)]
)
def test_a_learner_alone_trains_with_a_server_beside_it(strategy: roundelay.Strategy) -> None:
    torch.manual_seed(0)
    module = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    with roundelay.join(module, optimizer, strategy) as learner:
        assert (learner.rank, learner.num_learners) == (0, 1)
        losses = []
        for _ in range(3):
            for x in learner.share([torch.ones(4, 3)] * 10):
                optimizer.zero_grad()
                loss = (module(x) - 1).square().mean()
                loss.backward()
                optimizer.step()
                losses.append(float(loss.detach()))
    assert losses[-1] < 0.1 * losses[0]
    assert float((module(torch.ones(4, 3)) - 1).square().mean().detach()) < 0.1 * losses[0], (
        "after close it has the consensus"
    )


def test_the_rate_that_a_user_sets_reaches_the_server_with_the_push() -> None:
    module = nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    with torch.no_grad():
        module.weight.fill_(1.0)
    with roundelay.join(module, optimizer, roundelay.ASGD()) as learner:
        for k, x in enumerate(learner.share([torch.ones(1, 1)] * 4)):
            optimizer.param_groups[0]["lr"] = 0.1 * k
            optimizer.zero_grad()
            module(x).sum().backward()
            optimizer.step()
            if k == 1:
                with torch.no_grad():
                    module.weight.add_(5.0)  # an edit goes the same way
    assert module.weight.item() == pytest.approx(1.0 - 0.1 * (0 + 1 + 2 + 3) + 5.0)
