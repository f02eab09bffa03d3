"""Train in an ordinary PyTorch loop on as many learners as torchrun starts; two lines are new.

torchrun --nproc-per-node 2 examples/join.py
"""

import torch
from torch import nn

import roundelay

torch.manual_seed(0)
x = torch.randn(512, 8)
y = x.sin().sum(1, keepdim=True)
batches = list(zip(x.split(16), y.split(16), strict=True))

model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
learner = roundelay.join(model, optimizer, roundelay.BMUF(block=4))  # 1

for _ in range(10):
    for inputs, targets in learner.share(batches):  # 2
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()

loss = nn.functional.mse_loss(model(x), y)  # after the loop the model has the consensus of all learners
if learner.rank == 0:
    print(f"{learner.num_learners} learners: loss {float(loss.detach()):.4f}")
learner.save("join-model.safetensors")
learner.close()
