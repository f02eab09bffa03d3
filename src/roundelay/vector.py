"""Where a module's tensors lie in one flat vector."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from roundelay.errors import SettingsError

ALIGNMENT_BYTES = 64  # a cache line, and the widest vector register


@dataclass(frozen=True, eq=False)
class Slot:
    """Where a parameter or a buffer lies in the vector."""

    name: str
    tensor: Tensor
    part: slice
    narrow: Tensor | None
    """The storage of a tensor whose type is narrower than the vector's, which therefore cannot be a view into it."""

    def view(self, vector: Tensor) -> Tensor:
        """Return this tensor's part of ``vector``, in its shape."""
        return vector[self.part].view(self.tensor.shape)


def make_layout(module: nn.Module) -> tuple[list[Slot], list[Tensor], int, Tensor]:
    """Give every trained parameter and floating buffer its place; also: the constants, the tail, a blank vector."""
    parameters = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    buffers = [(name, b) for name, b in module.named_buffers() if b.is_floating_point()]
    constants: list[Tensor] = [p for p in module.parameters() if not p.requires_grad]
    constants += [b for b in module.buffers() if not b.is_floating_point()]
    if not parameters:
        raise SettingsError(f"{type(module).__name__} has no parameter that requires a gradient: nothing to train")
    wide = [torch.float64] if any(p.dtype == torch.float64 for _, p in parameters) else [torch.float32]
    blank = torch.zeros(0, dtype=wide[0], device=parameters[0][1].device)
    unit = ALIGNMENT_BYTES // blank.element_size()
    places, begin, tail = [], 0, 0
    for index, (name, tensor) in enumerate([*parameters, *buffers]):
        narrow = tensor.data if tensor.dtype != blank.dtype else None
        places.append(Slot(name, tensor, slice(begin, begin + tensor.numel()), narrow))
        begin += -(-tensor.numel() // unit) * unit
        if index + 1 == len(parameters):
            tail = begin
    return places, constants, tail, blank.new_zeros(begin)
