"""An LSTM language model whose state is carried from one piece of the text to the next; the rate falls by epoch."""

import sys
from pathlib import Path

import torch
from torch import nn

import roundelay

COLUMNS, LENGTH, EPOCHS, RATE = 16, 24, 3, 4.0

text = Path(nn.functional.__file__).read_text(encoding="utf-8")[:30_000]
chars = sorted(set(text))
codes = torch.tensor([chars.index(char) for char in text])
columns = codes[: len(codes) // COLUMNS * COLUMNS].reshape(COLUMNS, -1).T  # each column is a text of its own


class Model(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.embedding = nn.Embedding(len(chars), width)
        self.lstm = nn.LSTM(width, width)
        self.head = nn.Linear(width, len(chars))

    def forward(self, tokens, state):
        hidden, state = self.lstm(self.embedding(tokens), state)
        return self.head(hidden), state


def pieces(columns):
    for begin in range(0, len(columns) - 1, LENGTH):
        end = min(begin + LENGTH, len(columns) - 1)
        yield columns[begin:end], columns[begin + 1 : end + 1]


torch.manual_seed(0)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
learner = roundelay.join(model, optimizer, roundelay.make_strategy(*sys.argv[1:] or ["synchronous"]))
mine = columns[:, learner.rank :: learner.num_learners]  # a state belongs to its columns
for epoch in range(EPOCHS):
    optimizer.param_groups[0]["lr"] = RATE / 2**epoch
    state = None
    for tokens, targets in learner.share(pieces(mine), own=True):
        state = [each.detach() for each in state] if state is not None else None
        optimizer.zero_grad()
        scores, state = model(tokens, state)
        nn.functional.cross_entropy(scores.flatten(0, 1), targets.flatten()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()

scores, _ = model(columns[:500], None)
if learner.rank == 0:
    print(f"loss {nn.functional.cross_entropy(scores.flatten(0, 1), columns[1:501].flatten()).item():.4f}")
learner.close()
