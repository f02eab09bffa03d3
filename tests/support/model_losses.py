"""Every model with a loss, natural gradients and an RBM, on the CPU and on the stand-in accelerator."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from roundelay.devices import to_device
from roundelay.experiment.pretraining.rbm import RBM
from roundelay.models import build_model
from roundelay.optim.natural_gradient import NaturalGradientSettings, precondition
from roundelay.speech.features.spec_augment import SpecAugment, apply_masks
from roundelay.tasks.batch_reader import with_context

BANDS, OUTPUTS = 40, 5
SMALL: dict[str, dict[str, Any]] = {
    "cldnn": {"name": "cldnn", "preset": "tiny"},
    "conformer": {"name": "conformer", "preset": "tiny"},
    "dnn": {"name": "dnn", "preset": "tiny"},
    "lstm": {"name": "lstm", "preset": "tiny"},
    "lstm of linear layers": {"name": "lstm", "preset": "tiny", "linear": True},
    "tdnn": {"name": "tdnn", "preset": "tiny"},
}
"""By a name for the test."""


def gradient(settings: dict[str, Any], device: str, *, ctc: bool, natural: bool) -> list[Tensor]:
    """Return the gradients of a model, computed on a device."""
    torch.manual_seed(0)
    model = build_model(settings, BANDS, OUTPUTS).to(device)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    if natural:
        precondition(model, sgd, NaturalGradientSettings(rank_in=2, rank_out=2))
    torch.manual_seed(1)
    lengths, here = torch.tensor([30, 20, 12]), torch.device(device)
    x = apply_masks(to_device(torch.randn(3, 30, BANDS), here), SpecAugment(1, 2, 1, 4), BANDS, BANDS)
    logits = model(with_context(x, lengths, model.left, model.right), None if model.framewise else lengths)
    targets = to_device(torch.randint(1, OUTPUTS, (3, 6)), here)
    if ctc:
        scores = logits.log_softmax(-1).transpose(0, 1)
        loss = functional.ctc_loss(scores, targets, lengths, torch.tensor([6, 5, 4]), reduction="sum")
    else:
        wanted = targets[:, :1].expand(-1, logits.shape[1])
        loss = functional.cross_entropy(logits.reshape(-1, OUTPUTS), wanted.reshape(-1))
    loss.backward()
    sgd.step()
    return [parameter.detach().cpu() for parameter in model.parameters()]


def statistics(device: str) -> list[Tensor]:
    """Return the statistics of an RBM, computed on a device."""
    torch.manual_seed(0)
    rbm, rows = RBM(6, 4, "gaussian").to(device), torch.randn(8, 6).to(device)
    return [each.cpu() for each in rbm.contrast(rows)[0].values()]


def compare() -> dict[str, str]:
    """Return for each whether both devices came to the same bits, or close."""
    torch.set_num_threads(1)
    found = {"rbm": verdict(statistics("cpu"), statistics("stand_in"))}
    for name, settings in SMALL.items():
        for ctc, natural in ((False, False), (True, False), (False, True)):
            key = name + (" by ctc" if ctc else "") + (", natural gradients" if natural else "")
            here = [gradient(settings, device, ctc=ctc, natural=natural) for device in ("cpu", "stand_in")]
            said = verdict(*here)
            found[name if name == "conformer" else key] = said
    return found


def verdict(mine: list[Tensor], theirs: list[Tensor]) -> str:
    """Return how two lists of tensors compare."""
    pairs = list(zip(mine, theirs, strict=True))
    if all(torch.equal(a, b) for a, b in pairs):
        return "same"
    return "close" if all(torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in pairs) else "different"


if __name__ == "__main__":
    name, arguments = sys.argv[1], json.loads(sys.argv[2])
    sys.stdout.write(json.dumps(globals()[name](*arguments)) + "\n")
    sys.stdout.flush()
    os._exit(0)  # threads of autograd for a device do not end by themselves
