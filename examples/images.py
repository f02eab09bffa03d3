"""An image classifier: a scheduler stepped by batch, and workers that make the images."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler

import roundelay

EPOCHS, BATCH, CLASSES = 4, 64, 8


class Stripes(Dataset):
    """Noisy stripes in one of eight directions; some labels are wrong."""

    def __init__(self, size, first=0):
        self.size, self.first = size, first

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(self.first + index)
        label, phase, wrong = torch.rand(3, generator=generator)
        label = int(label * CLASSES)
        angle, across = torch.tensor(torch.pi * label / CLASSES), torch.linspace(-6, 6, 16)
        image = torch.sin(across * angle.cos() + across[:, None] * angle.sin() + 6 * phase)
        image += torch.randn(image.shape, generator=generator)
        return image[None], label if wrong > 0.2 else (label + 1) % CLASSES


if __name__ == "__main__":
    torch.manual_seed(0)
    data, held_out = Stripes(1024), Stripes(512, first=10**6)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(2),
        nn.Flatten(), nn.Linear(128, CLASSES),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    learner = roundelay.join(model, optimizer, roundelay.make_strategy(*sys.argv[1:] or ["synchronous"]))
    order = RandomSampler(data, generator=torch.Generator().manual_seed(0))
    loader = DataLoader(data, BATCH // learner.num_learners, sampler=order, num_workers=2, persistent_workers=True)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=EPOCHS * len(loader))
    scheduler, loader = learner.follow(scheduler), learner.share(loader)  # it goes by the minibatches of all learners
    for _ in range(EPOCHS):
        for images, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            scheduler.step()

    model.eval()
    images, labels = next(iter(DataLoader(held_out, len(held_out))))
    if learner.rank == 0:
        print(f"loss {nn.functional.cross_entropy(model(images), labels).item():.4f}")
    learner.close()
