"""Servers in the processes of learners, a thread each: all processes of a user loop train, and run one script."""

from __future__ import annotations

import contextlib
import copy
import functools
import queue
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from roundelay.errors import LearnerLost
from roundelay.learner import Learner
from roundelay.user_loop.loop_rank import LoopRank
from roundelay.user_loop.module_learner import ModuleLearner, exact_rates

ServerAct = Callable[[LoopRank], object]
"""What a server does beside the learner whose process it is in."""
JOIN_SECONDS = 10.0


class _Copies(nn.Module):
    """Copies of the tensors in a learner's vector, by their names; a server needs no forward pass."""

    def __init__(self, parameters: dict[str, nn.Parameter], buffers: dict[str, Tensor]) -> None:
        super().__init__()
        self._copied = parameters, buffers

    def named_parameters(self, *_: Any, **__: Any) -> Iterator[tuple[str, nn.Parameter]]:
        return iter(self._copied[0].items())

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        return iter(self._copied[0].values())

    def named_buffers(self, *_: Any, **__: Any) -> Iterator[tuple[str, Tensor]]:
        return iter(self._copied[1].items())

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        return iter(self._copied[1].values())


class ServerLearner(Learner):
    """A server's copy of the weights; it steps by the settings of the user's optimizer, as they are now."""

    def __init__(self, host: ModuleLearner) -> None:
        assert host.optimizer is not None
        self._users = host.optimizer
        parameters = {
            place.name: nn.Parameter(place.tensor.detach().clone())
            for place in host.slots
            if place.part.start < host.tail
        }
        buffers = {place.name: place.tensor.clone() for place in host.slots if place.part.start >= host.tail}
        copies = {id(place.tensor): parameters[place.name] for place in host.slots if place.name in parameters}
        super().__init__(_Copies(parameters, buffers), _copy_optimizer(host.optimizer, copies), clip=host.clip)
        self.nominal_frames = host.nominal_frames
        self.constants = [constant.detach().clone() for constant in host.constants]

    def incoming(self, theirs: Tensor, part: slice) -> Tensor:
        """Take over the rates and the edits that the learner has sent along with its gradient."""
        assert self.optimizer is not None
        size, mine = part.stop - part.start, exact_rates(self.optimizer, self.weights)
        if theirs.numel() > size:
            sent = theirs[size : size + mine.numel()].clone().cpu().view(torch.float64).tolist()
            for group, rate in zip(self.optimizer.param_groups, sent, strict=True):
                group["lr"] = rate
        if theirs.numel() > size + mine.numel():
            self.weights[part].add_(theirs[size + mine.numel() :])
        return theirs[:size]

    def step_optimizer(self) -> None:
        """Step by all settings of the user's optimizer but the rate, which came with the push."""
        assert self.optimizer is not None
        for mine, users in zip(self.optimizer.param_groups, self._users.param_groups, strict=True):
            mine.update({name: value for name, value in users.items() if name not in ("params", "lr")})
        super().step_optimizer()


def _copy_optimizer(optimizer: torch.optim.Optimizer, copies: dict[int, nn.Parameter]) -> torch.optim.Optimizer:
    """Return an optimizer of the same kind, settings and state, over copies of the parameters."""
    made = copy.copy(optimizer)
    vars(made).pop("step", None)  # a scheduler's or ours
    for hooks in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
        setattr(made, hooks, OrderedDict())  # the user's hooks are for the user's own optimizer
    made.param_groups = [
        {**group, "params": [copies[id(p)] for p in group["params"] if id(p) in copies]}
        for group in optimizer.param_groups
    ]
    made.state = defaultdict(dict)
    for parameter, state in optimizer.state.items():
        if id(parameter) in copies:
            made.state[copies[id(parameter)]] = copy.deepcopy(state)
    return made


class HostedServers:
    """The servers in this process; each repeats, in its thread, what the learner beside it does."""

    def __init__(self) -> None:
        self._each: list[tuple[queue.SimpleQueue[ServerAct | None], threading.Thread]] = []
        self._made: list[threading.Event] = []
        self.failure: BaseException | None = None

    def start(self, make: Callable[[], LoopRank], fail: Callable[[BaseException], None]) -> None:
        """Start a server; ``make`` takes its place among the ranks, and ``fail`` tells the others of an error."""
        acts: queue.SimpleQueue[ServerAct | None] = queue.SimpleQueue()
        thread = threading.Thread(target=self._run, args=(acts, make, fail), name="server", daemon=True)
        thread.start()
        self._each.append((acts, thread))

    def _run(
        self,
        acts: queue.SimpleQueue[ServerAct | None],
        make: Callable[[], LoopRank],
        fail: Callable[[BaseException], None],
    ) -> None:
        try:
            rank = make()
            while True:
                with rank.runtime.computing(rank.learner):  # it has no frames; requests are served meanwhile
                    act = acts.get()
                if act is None:
                    return
                with contextlib.suppress(LearnerLost):  # the learner beside it knows, too, and says what to do
                    act(rank)
        except BaseException as error:  # the learner beside it raises this at its next act
            self.failure = error
            fail(error)

    def put(self, act: ServerAct | None) -> None:
        """Let every server of this process do ``act``; ``None``: end."""
        if self.failure is not None:
            raise self.failure
        for acts, _ in self._each:
            acts.put(act)

    def renew(self, host: ModuleLearner) -> None:
        """Give every server a new copy of what the learner beside it trains now."""
        for acts, _ in self._each:
            acts.put(functools.partial(LoopRank.replace_learner, new=ServerLearner(host)))

    def join(self) -> None:
        """Wait until all have ended."""
        for _, thread in self._each:
            thread.join(JOIN_SECONDS)
