"""A trained HMM-GMM: aligns, scores, adapts, and is saved and loaded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from roundelay.files import write_json
from roundelay.speech.gmm.alignment import Alignment, Alignments
from roundelay.speech.gmm.arrays import Array, Features, Speakers, Transcripts, read_tensors, write_tensors
from roundelay.speech.gmm.corpus_passes import Model, UtteranceSet, align_chunk, fmllr_chunk
from roundelay.speech.gmm.decision_tree import Tree
from roundelay.speech.gmm.fmllr import SpeakerTransforms
from roundelay.speech.gmm.front_end import FrontEnd
from roundelay.speech.gmm.gaussian_mixtures import Gmm
from roundelay.speech.gmm.hmm import Spelling
from roundelay.speech.gmm.viterbi import Transitions
from roundelay.speech.worker_pool import WorkerPool

_FILE = "model.safetensors"
_KIND = "acoustic model"


@dataclass(frozen=True)
class ModelLexicon:
    """The lexicon of a model."""

    phones: list[str]
    pronunciations: dict[str, list[tuple[str, ...]]]


@dataclass(frozen=True)
class HmmGmm:
    """A trained HMM-GMM: front end, tree, Gaussian mixtures, transition probabilities, lexicon.

    An adapted model has two sets of mixtures: ``first_pass`` for unadapted features, and those of ``model`` for
    features transformed by a speaker's matrix.  In other models ``first_pass`` is None.
    """

    model: Model
    lexicon: ModelLexicon
    first_pass: Gmm | None = None
    failures: dict[str, str] = field(default_factory=dict)  # utterances that training could not use, with reasons

    @property
    def tree(self) -> Tree:
        """Return the tree that ties states to senones."""
        return self.model.tree

    @property
    def unadapted(self) -> Model:
        """Return the model for features that are not transformed by speaker."""
        if self.first_pass is None:
            return self.model
        return Model(self.model.front_end, self.model.tree, self.first_pass, self.model.transitions)

    def align(
        self, features: Features, transcripts: Transcripts, speakers: Speakers | None = None, jobs: int = 1
    ) -> Alignments:
        """Align states to frames; an adapted model uses two passes if speakers are given."""
        alignments = Alignments(self.lexicon.phones)
        for utterance, found in self.align_each(features, transcripts, speakers, jobs):
            alignments.add(utterance, transcripts[utterance], found)
        return alignments

    def align_each(
        self, features: Features, transcripts: Transcripts, speakers: Speakers | None = None, jobs: int = 1
    ) -> Iterator[tuple[str, Alignment | str]]:
        """Yield alignments, shortest utterance first; a string is the reason why an utterance failed."""
        with WorkerPool(jobs) as workers:
            corpus = self._open(features, transcripts, speakers)
            model = self.unadapted
            if self.first_pass is not None and speakers is not None:
                corpus.transforms = self._matrices(corpus, workers)
                model = self.model
            found = workers.map(align_chunk, model, corpus.chunks())
            yield from zip(corpus.utterances, (a for part in found for a in part), strict=True)

    def speaker_transforms(
        self, features: Features, transcripts: Transcripts, speakers: Speakers, jobs: int = 1
    ) -> SpeakerTransforms:
        """Estimate each speaker's fMLLR matrix from transcripts: correct ones, or those of a first pass."""
        with WorkerPool(jobs) as workers:
            corpus = self._open(features, transcripts, speakers)
            return SpeakerTransforms(self.model.front_end, corpus.normalisers, self._matrices(corpus, workers))

    def _open(self, features: Features, transcripts: Transcripts, speakers: Speakers | None) -> UtteranceSet:
        return UtteranceSet.open(features, transcripts, speakers, Spelling(self.lexicon), self.model.front_end)

    def _matrices(self, corpus: UtteranceSet, workers: WorkerPool) -> dict[str, Array]:
        """Align each speaker's utterances with the first-pass mixtures, then fit the matrix to the adapted ones."""
        shared = (self.unadapted, self.model.gmm)
        return dict(workers.map(fmllr_chunk, shared, corpus.speaker_chunks()))

    def save(self, folder: Path) -> None:
        """Write the model as safetensors with a JSON description into a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        model = self.model
        arrays = {f"tree.{name}": array for name, array in model.tree.arrays().items()}
        arrays |= {f"gmm.{name}": array for name, array in model.gmm.arrays().items()}
        arrays |= {"stay": model.transitions.stay, "leave": model.transitions.leave}
        if self.first_pass is not None:
            arrays |= {f"first_pass.{name}": array for name, array in self.first_pass.arrays().items()}
        if model.front_end.projection is not None:
            arrays["projection"] = model.front_end.projection
        description = {
            "kind": _KIND,
            "version": 1,
            "front_end": model.front_end.describe(),
            "phones": self.lexicon.phones,
            "pronunciations": self.lexicon.pronunciations,
            "failures": self.failures,
        }
        write_tensors(folder / _FILE, arrays, description)
        sizes = {"num_senones": model.tree.num_senones, "num_gaussians": model.gmm.num_gaussians}
        write_json(folder / "model.json", description | sizes | {"adapted": self.first_pass is not None})

    @classmethod
    def load(cls, folder: Path) -> HmmGmm:
        """Read what ``save`` wrote."""
        arrays, description = read_tensors(folder / _FILE, _KIND)
        parts: dict[str, dict[str, Array]] = {}
        for name, array in arrays.items():
            part, _, field_name = name.partition(".")
            parts.setdefault(part, {})[field_name] = array
        front_end = FrontEnd(**description["front_end"], projection=arrays.get("projection"))
        transitions = Transitions(arrays["stay"], arrays["leave"])
        model = Model(front_end, Tree(**parts["tree"]), Gmm(**parts["gmm"]), transitions)
        variants = {word: [tuple(p) for p in prons] for word, prons in description["pronunciations"].items()}
        first_pass = Gmm(**parts["first_pass"]) if "first_pass" in parts else None
        return cls(model, ModelLexicon(description["phones"], variants), first_pass, description["failures"])
