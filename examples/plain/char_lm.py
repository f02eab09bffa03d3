"""A character language model: gradient accumulation, a cosine rate set by hand, groups with and without decay."""

import math
from pathlib import Path

import torch
from torch import nn

WINDOW, BATCH, ACCUMULATE, STEPS, RATE = 32, 8, 4, 48, 3e-3

text = Path(nn.functional.__file__).read_text(encoding="utf-8")
chars = sorted(set(text))
codes = torch.tensor([chars.index(char) for char in text])
torch.manual_seed(0)
starts = torch.randint(len(codes) - WINDOW - 1, (STEPS * ACCUMULATE * BATCH,))
windows = torch.stack([codes[start : start + WINDOW + 1] for start in starts])


class CharModel(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.tokens, self.places = nn.Embedding(len(chars), width), nn.Embedding(WINDOW, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, len(chars))

    def forward(self, tokens):
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        hidden = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        return self.head(self.layers(hidden, mask=mask, is_causal=True))


def loss_of(window):
    return nn.functional.cross_entropy(model(window[:, :-1]).flatten(0, 1), window[:, 1:].flatten())


model = CharModel()
decayed = [parameter for parameter in model.parameters() if parameter.dim() >= 2]
others = [parameter for parameter in model.parameters() if parameter.dim() < 2]
groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.99))

for number, window in enumerate(windows.split(BATCH)):
    step = number // ACCUMULATE
    for group in optimizer.param_groups:
        group["lr"] = RATE * min(1.0, (step + 1) / 10) * 0.5 * (1.1 + 0.9 * math.cos(math.pi * step / STEPS))
    (loss_of(window) / ACCUMULATE).backward()
    if (number + 1) % ACCUMULATE == 0:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

print(f"loss {loss_of(windows[:256]).item():.4f}")
