"""A GAN that learns points on a circle: two models, two optimizers."""

import sys

import torch
from torch import nn

import roundelay

STEPS, BATCH, NOISE = 240, 64, 4

torch.manual_seed(0)
angles = 2 * torch.pi * torch.rand(STEPS * BATCH)
points = torch.stack([angles.cos(), angles.sin()], 1) * 2 + 0.05 * torch.randn(len(angles), 2)
noise = torch.randn(len(angles), NOISE)


def network(inputs, outputs):
    return nn.Sequential(
        nn.Linear(inputs, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, outputs)
    )


def loss_of(points, real):
    scores = discriminator(points)
    return nn.functional.binary_cross_entropy_with_logits(scores, torch.full_like(scores, real))


generator, discriminator = network(NOISE, 2), network(2, 1)
for_generator = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.9))
for_discriminator = torch.optim.Adam(discriminator.parameters(), lr=1e-3, betas=(0.5, 0.9))
first = roundelay.join(discriminator, for_discriminator, roundelay.make_strategy(*sys.argv[1:] or ["synchronous"]))
second = roundelay.join(generator, for_generator, roundelay.make_strategy(*sys.argv[1:] or ["synchronous"]))
BATCH //= first.num_learners

for real, seed in first.share([*zip(points.split(BATCH), noise.split(BATCH), strict=True)]):
    for_discriminator.zero_grad()
    (loss_of(real, 1.0) + loss_of(generator(seed).detach(), 0.0)).backward()
    for_discriminator.step()
    for_generator.zero_grad()
    loss_of(generator(seed), 1.0).backward()
    for_generator.step()

first.close()
second.close()
made = generator(noise[:1024]).detach()
distance = (made.norm(dim=1) - 2).abs().mean()
if first.rank == 0:
    print(f"loss {(loss_of(points[:1024], 1.0) + loss_of(made, 0.0)).item():.4f}, {distance:.4f} from the circle")
