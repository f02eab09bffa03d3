"""An Accelerate script: accumulation, clipping, a scheduler and gathered metrics are Accelerate's."""

import sys

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import roundelay

EPOCHS, BATCH = 6, 32

set_seed(0)
inputs = torch.randn(2048 + 512, 8)
targets = inputs.sin().sum(1, keepdim=True) + 0.3 * torch.randn(len(inputs), 1)
data, held_out = TensorDataset(inputs[:2048], targets[:2048]), TensorDataset(inputs[2048:], targets[2048:])

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
loader = DataLoader(data, BATCH // accelerator.num_processes, shuffle=True)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * len(loader))
learner = roundelay.join(model, optimizer, roundelay.make_strategy(*sys.argv[1:] or ["synchronous"]))
optimizer, loader, scheduler = accelerator.prepare(optimizer, loader, scheduler)  # the model stays what it is
held_out = accelerator.prepare(DataLoader(held_out, 64))

for _ in range(EPOCHS):
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.mse_loss(model(x), y)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()

learner.close()
model.eval()
with torch.no_grad():
    losses = [accelerator.gather_for_metrics((model(x) - y).square()) for x, y in held_out]
accelerator.print(f"loss {torch.cat(losses).mean().item():.4f}")
