"""Make features of new utterances like those of a run: normalised, adapted in two passes, with speaker vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from roundelay.corpora.data_directory import Utterance
from roundelay.errors import DataError
from roundelay.files import read_json
from roundelay.formats import audio_files
from roundelay.speech.decoding.acoustic_bundle import Bundle
from roundelay.speech.features.array_store import ArrayStore, write_store
from roundelay.speech.features.extraction import Copy, Extraction
from roundelay.speech.features.network_inputs import CombinedInputs
from roundelay.speech.gmm.front_end import FrontEnd, Normaliser
from roundelay.speech.gmm.ivector import BaumWelch, IvectorModel
from roundelay.speech.preparation.adaptation_stage import ADAPTED, Adapter
from roundelay.speech.preparation.ivector_stage import IVECTORS, UnnormalisedFeatures

Progress = Callable[[str, int, int], None]
Archives = Mapping[str, tuple[Path, int]]
Array = npt.NDArray[Any]
_SPLIT = "new"
FEATURES = f"features/{_SPLIT}"
"""Where below the given folder the features are, with what was heard in the audio beside them."""
_TAKEN = ("lexicon.txt", "graphs", "hmm")  # files that adaptation reads


def make_matching_features(
    bundle: Bundle, utterances: Sequence[Utterance], folder: Path, *, archives: Archives | None = None,
    jobs: int = 1, resample: bool = False, progress: Progress = lambda *_: None,
) -> CombinedInputs:  # fmt: skip
    """Write features below ``folder``, which must be empty, and open them as inputs of the run's network.

    ``archives`` are the positions of given features.  Audio at a lower rate than the run's is an error without
    ``resample``.
    """
    if bundle.given_features and archives is None:
        raise DataError(
            f"{bundle.run}: trained on given features (feats.scp), which cannot be made from audio; give a folder with "
            f"a feats.scp of the same kind"
        )
    if archives is None and not resample:
        check_rates(bundle, utterances)
    copies = [Copy(utterance) for utterance in utterances]
    extraction = Extraction(
        folder / "features" / _SPLIT, copies, bundle.feature_settings, bundle.normalise, archives
    )  # fmt: skip
    (folder / "features").mkdir(parents=True)
    plain = extraction.run(jobs, lambda done: progress("features", done, len(copies)))
    made = {"plain": plain}
    if "adapted" in bundle.kinds:
        made["adapted"] = _adapt(bundle, copies, folder, jobs, progress)
    vectors = _vectors(bundle, copies, folder, progress) if bundle.ivectors else None
    return CombinedInputs([made[kind] for kind in bundle.kinds], vectors)


def check_rates(bundle: Bundle, utterances: Iterable[Utterance]) -> None:
    """Raise if audio lacks the upper part of the spectrum that the network was trained on."""
    needed = min(bundle.feature_settings.rate, bundle.source_rate or bundle.feature_settings.rate)
    for path in dict.fromkeys(utterance.audio for utterance in utterances):
        rate = audio_files.info(path).rate
        if rate < needed:
            raise DataError(
                f"{path}: {rate} Hz, but the run was trained on {needed} Hz; use a recording at {needed} Hz "
                f"or more, train on data prepared with --rate {rate}, or give --resample"
            )


def _adapt(bundle: Bundle, copies: list[Copy], folder: Path, jobs: int, progress: Progress) -> ArrayStore:
    """Adapt in two passes, without transcripts, like held-out splits in preparation."""
    for name in _TAKEN:
        (folder / name).symlink_to((bundle.folder / name).absolute())
    list(Adapter(folder, {_SPLIT: copies}, bundle.first_pass, jobs, progress).run(()))
    return ArrayStore(folder / ADAPTED / _SPLIT)


def _vectors(bundle: Bundle, copies: list[Copy], folder: Path, progress: Progress) -> ArrayStore:
    """Write each utterance's speaker vector: of the utterance, or of all utterances of its speaker here."""
    model = IvectorModel.load(bundle.folder / IVECTORS / "model.safetensors")
    make_cepstra = _cepstra_maker(bundle.folder / IVECTORS / "normaliser.json")
    by_speaker = bundle.description["ivector_settings"]["per"] == "speaker"
    sums: dict[str, BaumWelch] = {}
    source = UnnormalisedFeatures(folder / "features" / _SPLIT, copies)
    for done, copy in enumerate(copies, 1):
        unit = copy.speaker if by_speaker else copy.name
        if len(features := source[copy.name]):
            found = BaumWelch.collect(model.ubm, make_cepstra(features))
            sums[unit] = sums[unit] + found if unit in sums else found
        progress(IVECTORS, done, len(copies))
    vectors = {unit: model.posterior(found)[0] for unit, found in sums.items()}
    silent = np.zeros(model.size)
    (folder / IVECTORS).mkdir()
    rows = ((c.name, vectors.get(c.speaker if by_speaker else c.name, silent)[None]) for c in copies)
    return write_store(folder / IVECTORS / _SPLIT, rows, dim=model.size)


def _cepstra_maker(path: Path) -> Callable[[Array], Array]:
    """Return a function from features to the cepstra that the background mixture was trained on."""
    said = read_json(path)
    normaliser = Normaliser(*(np.asarray(said.pop(name), np.float32) for name in ("mean", "scale")))
    front_end = FrontEnd(**said)
    return lambda features: front_end(features, normaliser)
