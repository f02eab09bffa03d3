"""A trained run's network, loaded to score frames.

Legend: T frames, F features, S outputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from roundelay import config
from roundelay.devices import choose_device, to_device, use_device
from roundelay.errors import DataError
from roundelay.files import file_digest, read_json
from roundelay.models import AcousticModel, build_model, check_readable
from roundelay.runs.run_folder import RunFolder
from roundelay.speech.decoding.acoustic_bundle import Bundle

Array = npt.NDArray[np.float32]


def open_run(run: Path) -> Bundle:
    """Open a run for decoding; raise at once if its files do not belong together."""
    bundle = Bundle.open(run)
    bundle.verify()
    load_network(run, bundle)
    return bundle


def load_network(run: Path, bundle: Bundle) -> AcousticModel:
    """Build the model that the run's settings name, with the run's weights, ready to score."""
    folder = RunFolder(Path(run))
    if not folder.settings.is_file():
        raise DataError(f"{folder.settings}: no such file; copy the run again, settings.toml and model.safetensors too")
    table = config.read(folder.settings).get("task", {}).get("model")
    if not isinstance(table, Mapping):
        raise DataError(f"{folder.settings}: task.model is missing; decoding needs a run of an acoustic task")
    check_readable(table, f"{folder.settings}: task.model")
    model = build_model(table, bundle.inputs, bundle.outputs, f"{folder.settings}: task.model")
    tensors = _read(folder.model)
    _check(folder.model, model, tensors, bundle)
    model.load_state_dict(tensors)
    return model.eval()


def _read(path: Path) -> dict[str, torch.Tensor]:
    if not path.is_file():
        raise DataError(f"{path}: no such file; the run has no trained model yet, or was copied without it")
    about = path.with_suffix(".json")
    said = read_json(about) if about.is_file() else {}
    expected = said.get("sha256") if isinstance(said, dict) else None  # runs of older versions have none
    if expected is not None and file_digest(path) != expected:
        raise DataError(
            f"{path}: damaged: its sha256 is not that in {about.name}; copy the run again, or make it again with "
            f"'roundelay train {path.parent / 'settings.toml'} --out NEW'"
        )
    try:
        return load_file(path)
    except SafetensorError as error:
        raise DataError(f"{path}: not a model that can be read ({error}); copy the run again") from None


def _check(path: Path, model: AcousticModel, tensors: Mapping[str, torch.Tensor], bundle: Bundle) -> None:
    """Raise if the weights are of another model, or do not fit the features or the graphs."""
    wanted = model.state_dict()
    if differing := sorted(wanted.keys() ^ tensors.keys()):
        raise DataError(f"{path}: its tensors are not those of task.model in settings.toml: {differing[0]!r}")
    wrong = [name for name, tensor in tensors.items() if tensor.shape != wanted[name].shape]
    if not wrong:
        return
    last = "output.weight"
    if last in wrong and tensors[last].shape[1:] == wanted[last].shape[1:]:
        fold = wanted[last].shape[0] // bundle.outputs  # frames that are scored at once, each by outputs of its own
        raise DataError(
            f"{path}: the model has {tensors[last].shape[0] // fold} outputs and the graphs in {bundle.folder} are for "
            f"{bundle.outputs}; use the acoustic folder that the run was trained with"
        )
    given, made = (list(shapes[wrong[0]].shape) for shapes in (tensors, wanted))
    raise DataError(
        f"{path}: {wrong[0]} is {given}, but {bundle.inputs} features per frame ({describe(bundle)}) make it "
        f"{made}; use the acoustic folder that the run was trained with"
    )


def describe(bundle: Bundle) -> str:
    """Describe the features of a run in a few words."""
    settings = bundle.feature_settings
    plain = f"{settings.dim} {settings.kind}"
    parts = [plain if kind == "plain" else kind for kind in bundle.kinds]
    return " + ".join([*parts, *(["i-vectors"] if bundle.ivectors else [])])


class Scorer:
    """Compute log-posteriors of utterances; the first and last frames are repeated beyond the ends."""

    def __init__(self, model: AcousticModel, device: str = "cpu") -> None:
        self.device = choose_device(device)
        use_device(self.device)
        self.model = model.eval().to(self.device)

    def __call__(self, features: npt.NDArray[Any]) -> Array:
        """Score an utterance (T, F): (ceil(T / stride), S); without frames there are no scores."""
        model = self.model
        if features.shape[1] != model.inputs:
            raise DataError(f"{features.shape[1]} features per frame, but the model was trained on {model.inputs}")
        if not len(features):
            return np.zeros((0, model.outputs), np.float32)
        padded = np.pad(np.asarray(features, np.float32), ((model.left, model.right), (0, 0)), mode="edge")
        with torch.inference_mode():
            logits = model(to_device(torch.from_numpy(padded)[None], self.device))[0]
            scores: Array = logits.log_softmax(-1).cpu().numpy()
        return scores
