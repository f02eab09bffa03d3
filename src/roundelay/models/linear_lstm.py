"""The LSTM of torch, built of Linear layers: slower, but natural gradients can use it.

Legend: B items, T frames, F features, H cells, P projection (H without one), D directions.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class LinearLSTM(nn.Module):
    """The same function as ``nn.LSTM(..., batch_first=True)``, to 1e-5, with weights in Linear layers."""

    def __init__(
        self,
        inputs: int,
        cells: int,
        layers: int = 1,
        *,
        bidirectional: bool = False,
        projection: int = 0,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        size, directions = projection or cells, 2 if bidirectional else 1
        self.cells, self.layers, self.directions = cells, layers, directions
        self.dropout = nn.Dropout(dropout)
        widths = [inputs if layer == 0 else size * directions for layer in range(layers) for _ in range(directions)]
        self.input = nn.ModuleList(nn.Linear(width, 4 * cells) for width in widths)
        self.recurrent = nn.ModuleList(nn.Linear(size, 4 * cells) for _ in widths)
        self.projection = nn.ModuleList(nn.Linear(cells, projection, bias=False) for _ in widths if projection)
        bound = cells**-0.5
        for parameter in self.parameters():  # the initial weights of nn.LSTM
            nn.init.uniform_(parameter, -bound, bound)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, None]:
        """Return (B, T, D P), zero beyond ``lengths``, and no last state."""
        inside, back = None, torch.arange(x.shape[1] - 1, -1, -1, device=x.device).expand(len(x), -1)
        if lengths is not None:
            frames = torch.arange(x.shape[1], device=x.device)
            inside = frames < lengths.to(x.device)[:, None]  # (B, T)
            back = torch.where(inside, lengths.to(x.device)[:, None] - 1 - frames, frames)
        for layer in range(self.layers):
            if layer:
                x = self.dropout(x)
            outs = [self._run(layer * self.directions, x)]
            if self.directions == 2:
                outs.append(_reorder(self._run(layer * 2 + 1, _reorder(x, back)), back))
            x = torch.cat(outs, 2) if self.directions == 2 else outs[0]
            if inside is not None:
                x = x * inside[:, :, None]
        return x, None

    def _run(self, index: int, x: Tensor) -> Tensor:
        """Return the outputs of one layer in one direction."""
        recurrent = self.recurrent[index]
        project = self.projection[index] if len(self.projection) else nn.Identity()
        gates: Tensor = self.input[index](x)
        c = x.new_zeros(len(x), self.cells)
        h, hs = project(c), []
        for gate in gates.unbind(1):
            i, f, g, o = (gate + recurrent(h)).chunk(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = project(torch.sigmoid(o) * torch.tanh(c))
            hs.append(h)
        return torch.stack(hs, 1)


def _reorder(x: Tensor, order: Tensor) -> Tensor:
    """Reorder the frames of each item by its row of ``order``."""
    return x.gather(1, order[:, :, None].expand(-1, -1, x.shape[2]))
