"""Train an acoustic model on prepared speech: senones of frames by cross-entropy, or phones of utterances by CTC."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from roundelay.config import Count, Fraction, Seed, check_bounds
from roundelay.devices import device_of, to_device
from roundelay.errors import DataError, SettingsError
from roundelay.models import AcousticModel, build_model
from roundelay.speech.features.minibatches import Batch
from roundelay.speech.features.network_inputs import CombinedInputs
from roundelay.speech.features.spec_augment import SpecAugment, apply_masks
from roundelay.speech.preparation.prepared_data import PreparedData, open_prepared
from roundelay.task import Scores, Task
from roundelay.tasks.batch_reader import BatchReader, read_chunks, read_frames, read_utterances, with_context
from roundelay.tasks.ctc_labels import greedy_labels, label_errors, long_enough

HELD_OUT_UTTERANCES = 8
"""Utterances per held-out minibatch; learners divide these minibatches among themselves."""


@dataclass
class Acoustic(Task):
    """Prepared data, a model of `roundelay.models`, and a held-out split for evaluation.

    A model that needs only a window of frames gets single frames, shuffled over the corpus.  All other models get
    chunks, or whole utterances for CTC.  Held-out data are scored utterance by utterance, as in decoding.
    """

    score_names: ClassVar[tuple[str, ...]] = ("loss", "error")

    data: str = ""
    """Folder of prepared data; ``roundelay train --data`` sets it."""
    model: dict[str, Any] = field(default_factory=lambda: {"name": "dnn", "preset": "small"})
    """Name of the model, optionally a preset, and the model's settings."""
    objective: Literal["ce", "ctc"] = "ce"
    kinds: list[str] = field(default_factory=lambda: ["plain"])
    """Kinds of features, side by side: ``plain``, and ``adapted`` if the data were prepared with --adapt."""
    ivectors: bool = False
    """Whether the speaker's vector is an input too; the data must be prepared with --ivectors."""
    batch: Count = 256
    """Frames in a minibatch of one learner; chunks or utterances are chosen to give about as many frames."""
    chunk: Count = 60
    """Frames of a chunk without context."""
    label_smoothing: Fraction = 0.0
    """Share of a target that is spread over all senones; not used in held-out losses."""
    augment: SpecAugment = field(default_factory=SpecAugment)
    train: list[str] = field(default_factory=list)
    """Splits to train on; default: the training splits of the data."""
    held_out_split: str = "dev"
    """Split that is evaluated; by default schedules and model selection use its scores."""
    seed: Seed = 0
    """Seed of initial weights and of the order of minibatches; default: the experiment's."""

    def __post_init__(self) -> None:
        if not self.data:
            raise SettingsError("data is missing; give the folder of prepared data with --data")
        check_bounds(self)
        self.prepared: PreparedData = open_prepared(self.data)
        splits = self.train or self.prepared.train_splits
        inputs = {split: self._inputs(split) for split in splits}
        self.held_out_inputs = self._inputs(self.held_out_split)
        self._measure(inputs[splits[0]])
        model = self.make_module()
        self._reading = self._read(model, inputs)
        self.minibatches_per_epoch, self.nominal_frames = len(self._reading), self._reading.nominal_frames
        self._held_out = self._held_out_utterances(model)
        self.held_out_minibatches = len(self._held_out)
        self._begin_checks()

    # -- data ---------------------------------------------------------------------------------------------------

    def _inputs(self, split: str) -> CombinedInputs:
        return self.prepared.inputs(split, self.kinds, ivectors=self.ivectors)

    def _measure(self, inputs: CombinedInputs) -> None:
        """Set the numbers of inputs and outputs, of mel bands, and of inputs that are no speaker vector."""
        split = self.prepared.train_splits[0]
        self._bands = self.prepared.features(split).dim if self.kinds[0] == "plain" else 0
        self._heard = sum(self.prepared.features(split, kind).dim for kind in self.kinds)
        self._num_inputs = inputs.dim
        ctc = self.objective == "ctc"
        self._num_outputs = len(self.prepared.lexicon.phones) if ctc else self.prepared.num_senones

    def _read(self, model: AcousticModel, inputs: dict[str, CombinedInputs]) -> BatchReader:
        context = (model.left, model.right)
        if self.objective == "ctc":
            labels = {split: self.prepared.labels(split) for split in inputs}
            usable = {split: long_enough(inputs[split], labels[split], model.stride) for split in inputs}
            return read_utterances(inputs, labels, usable, self.batch, self.seed)
        targets = {split: self.prepared.alignments(split) for split in inputs}
        for store in targets.values():
            store.verify()  # at once: they are small, and a wrong senone would end a step
        if model.stride != 1:
            raise SettingsError(f"model: a stride of {model.stride} is for objective = 'ctc'; 'fold' reads as many")
        if model.framewise:
            return read_frames(inputs, targets, self.batch, self.seed, context)
        return read_chunks(inputs, targets, self.batch, self.seed, context, self.chunk)

    def _held_out_utterances(self, model: AcousticModel) -> list[list[str]]:
        inputs = self.held_out_inputs
        if self.objective == "ctc":
            self._held_out_labels = self.prepared.labels(self.held_out_split)
            names = long_enough(inputs, self._held_out_labels, model.stride)
            frames = sum(len(inputs[name]) for name in names)
            self._frames_a_label = frames / max(1, sum(len(self._held_out_labels[name]) for name in names))
        else:
            self._held_out_targets = self.prepared.alignments(self.held_out_split)
            names = [name for name in inputs.ids if name in self._held_out_targets and len(inputs[name])]
        if not names:
            raise DataError(f"{inputs.folder}: none of its utterances can be evaluated on")
        return [names[i : i + HELD_OUT_UTTERANCES] for i in range(0, len(names), HELD_OUT_UTTERANCES)]

    def _begin_checks(self) -> None:
        """Begin to compare with their digests the files that only `save_assets` reads, long from now."""
        from roundelay.speech.decoding.acoustic_bundle import bundle_files

        self.prepared.begin_checks(bundle_files(self.prepared, self.kinds, self.ivectors))

    # -- what the loop asks for -----------------------------------------------------------------------------------

    def make_module(self) -> AcousticModel:
        """Make the model, the same each time."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return build_model(self.model, self._num_inputs, self._num_outputs)

    def frames(self, epoch: int, index: int) -> int:
        """Return the number of frames in a minibatch, without loading it."""
        return self._reading.frames(epoch, index)

    def load(self, epoch: int, index: int) -> Batch:
        """Return a minibatch; raise if any data are known to be damaged."""
        self.prepared.look()
        return self._reading.load(epoch, index)

    def describe(self, epoch: int, index: int) -> str:
        """Name the utterances of a minibatch, the first few of many."""
        names = sorted(set(self._reading.utterances(epoch, index)))
        more = f" and {len(names) - 4} more" if len(names) > 4 else ""
        return f"utterances {', '.join(names[:4])}{more}"

    def loss(self, module: nn.Module, batch: Batch) -> Tensor:
        """Return the mean loss per frame."""
        model = cast("AcousticModel", module)
        if self.objective == "ctc":
            return self._ctc(model, self._masked(batch.inputs, model), batch) / batch.frames
        inputs = batch.inputs.view(len(batch.inputs), -1, self._num_inputs)
        logits = model(self._masked(inputs, model))  # a chunk's end is padded with its last frame, as in decoding
        return functional.cross_entropy(
            logits.reshape(-1, self._num_outputs), batch.targets.reshape(-1), label_smoothing=self.label_smoothing
        )

    def _masked(self, inputs: Tensor, model: AcousticModel) -> Tensor:
        return apply_masks(inputs, self.augment, self._bands, self._heard) if model.training else inputs

    def _ctc(self, model: AcousticModel, inputs: Tensor, batch: Batch) -> Tensor:
        assert batch.lengths is not None
        assert batch.target_lengths is not None
        logits = model(with_context(inputs, batch.lengths, model.left, model.right), batch.lengths)
        steps = torch.div(batch.lengths + model.stride - 1, model.stride, rounding_mode="floor")
        scores = logits.log_softmax(-1).transpose(0, 1)
        return functional.ctc_loss(scores, batch.targets, steps, batch.target_lengths, reduction="sum")

    def score(self, module: nn.Module, index: int) -> Scores:
        """Return the loss and the errors of one held-out minibatch; errors are of frames, or of phones for CTC."""
        model = cast("AcousticModel", module)
        sums = {"loss": 0.0, "error": 0.0, "frames": 0.0}
        for name in self._held_out[index]:
            inputs = to_device(torch.from_numpy(self.held_out_inputs[name]).float()[None], device_of(model))
            length = torch.tensor([inputs.shape[1]])
            scores = model(with_context(inputs, length, model.left, model.right))[0].log_softmax(-1)
            loss, errors = self._judge(name, scores)
            sums["loss"] += loss
            sums["error"] += errors
            sums["frames"] += float(length)
        return sums

    def _judge(self, name: str, scores: Tensor) -> tuple[float, float]:
        """Return the summed loss of an utterance and its errors; errors of labels are converted to frames."""
        if self.objective == "ce":
            targets = to_device(torch.tensor(self._held_out_targets[name]).long(), scores.device)
            loss = functional.nll_loss(scores, targets, reduction="sum")
            return float(loss), float((scores.argmax(-1) != targets).sum())
        labels = self._held_out_labels[name]
        steps, count = torch.tensor([len(scores)]), torch.tensor([len(labels)])
        targets = to_device(torch.tensor([labels]), scores.device)
        loss = functional.ctc_loss(scores[:, None], targets, steps, count, reduction="sum")
        return float(loss), label_errors(greedy_labels(scores), labels) * self._frames_a_label

    def save_assets(self, run: Path) -> None:
        """Write the parts of the data that decoding needs into the run's folder; raise if any data are damaged."""
        self.prepared.finish_checks(everything=True)  # other learners may have read what we have not
        from roundelay.speech.decoding.acoustic_bundle import write_bundle

        write_bundle(
            self.prepared, run, kinds=self.kinds, ivectors=self.ivectors, objective=self.objective, train=self.train
        )
