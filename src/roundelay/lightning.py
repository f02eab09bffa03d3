"""Lightning's Trainer on many learners: its processes, samplers and metrics, with a Roundelay strategy for the step.

Importing this module registers each strategy of the package by its name: ``Trainer(strategy="roundelay-bmuf")``.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from roundelay.errors import MissingExtra, SettingsError
from roundelay.strategies import STRATEGIES, make_strategy
from roundelay.strategy import Strategy
from roundelay.user_loop.joined_learner import JoinedLearner, join

try:
    from lightning.pytorch import Trainer
    from lightning.pytorch.plugins.precision import Precision
    from lightning.pytorch.strategies import DDPStrategy, StrategyRegistry
except ImportError:
    raise MissingExtra("lightning", "lightning") from None


class RoundelayStrategy(DDPStrategy):  # type: ignore[misc]  # checked without Lightning, it has no type
    """Train a LightningModule by a strategy: ``Trainer(strategy=RoundelayStrategy("bmuf", block=50), devices=4)``.

    ``strategy`` is a name, with its settings as further arguments, or a strategy.  Each optimizer of the module is a
    learner of its own.  Validation, checkpoints and the model after ``fit`` have the consensus of all learners.
    ``nonfinite`` is as of `roundelay.join`, ``process_group`` are arguments of Lightning's ``DDPStrategy`` that choose
    how processes are started (``{"start_method": "spawn"}``).
    """

    def __init__(
        self,
        strategy: Strategy | str = "synchronous",
        *,
        nonfinite: Any = "stop",
        process_group: dict[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        if isinstance(strategy, Strategy) and settings:
            raise SettingsError("RoundelayStrategy: give settings with a strategy's name, or a strategy that has them")
        self._make = functools.partial(make_strategy, strategy, **settings) if isinstance(strategy, str) else None
        self._given = self._make() if self._make is not None else strategy  # complains at once
        self._nonfinite = nonfinite
        self.learners: list[JoinedLearner] = []
        """One for each optimizer, while the Trainer fits."""
        self._shown: contextlib.ExitStack | None = None
        super().__init__(**(process_group or {}))

    # -- the module stays what it is, and is joined -------------------------------------------------------------

    def configure_ddp(self) -> None:
        """Leave the module as it is: nothing is wrapped."""

    def setup(self, trainer: Trainer) -> None:
        """Join each optimizer, after Lightning has made them."""
        super().setup(trainer)
        if trainer.state.fn != "fit":
            return
        if self._make is None and len(self.optimizers) > 1:
            raise SettingsError(
                f"RoundelayStrategy: the module has {len(self.optimizers)} optimizers, and each needs a strategy of "
                'its own; give its name and settings, RoundelayStrategy("bmuf", block=50)'
            )
        for optimizer in self.optimizers:
            strategy = self._make() if self._make is not None else self._given
            assert isinstance(strategy, Strategy)
            self.learners.append(join(self.lightning_module, optimizer, strategy, nonfinite=self._nonfinite))
        # Lightning would refuse to clip: it takes an optimizer that handles overflow itself for a fused one.
        self.precision_plugin.clip_gradients = functools.partial(Precision.clip_gradients, self.precision_plugin)

    def optimizer_step(self, optimizer: Any, closure: Callable[[], Any], model: Any = None, **kwargs: Any) -> Any:
        """Take the step; scaled gradients are divided by their scale before they are clipped, as under DDP."""
        scaler = getattr(self.precision_plugin, "scaler", None)

        def unscaling() -> Any:
            result = closure()
            if scaler is not None and (result is not None or not self.lightning_module.automatic_optimization):
                scaler.unscale_(optimizer)
            return result

        return super().optimizer_step(optimizer, closure if scaler is None else unscaling, model, **kwargs)

    @contextlib.contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Let backward passes of an accumulated gradient add up without communication."""
        with contextlib.ExitStack() as stack:
            for learner in self.learners:
                stack.enter_context(learner.no_sync())
            yield

    # -- the consensus ------------------------------------------------------------------------------------------

    def on_validation_start(self) -> None:
        """Show the consensus."""
        super().on_validation_start()
        self._shown = contextlib.ExitStack()
        for learner in self.learners:
            self._shown.enter_context(learner.consensus())

    def on_validation_end(self) -> None:
        """Go on with this learner's own weights."""
        if self._shown is not None:
            self._shown.close()
            self._shown = None
        super().on_validation_end()

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Return the consensus, for a checkpoint; Lightning asks every rank for it."""
        with contextlib.ExitStack() as stack:
            for learner in self.learners if self._shown is None else ():
                stack.enter_context(learner.consensus())
            state: dict[str, Any] = super().lightning_module_state_dict()
            return {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in state.items()}

    # -- the end ------------------------------------------------------------------------------------------------

    def on_train_end(self) -> None:
        """Leave the run; the module keeps the consensus."""
        super().on_train_end()
        for learner in self.learners:
            learner.close()
        self.learners.clear()

    def on_exception(self, exception: BaseException) -> None:
        """Leave at once; the others are told why."""
        super().on_exception(exception)
        for learner in self.learners:
            learner.abandon(f"learner {learner.rank} has stopped: {type(exception).__name__}: {exception}")
        self.learners.clear()


for _name in STRATEGIES:
    StrategyRegistry.register(
        f"roundelay-{_name}", functools.partial(RoundelayStrategy, _name), f"{_name} of Roundelay", override=True
    )
