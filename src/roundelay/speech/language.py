"""The stage of preparation that makes the language model and the decoding graphs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from roundelay.errors import SettingsError
from roundelay.speech import graph, ngram
from roundelay.speech.files import replacing, write_json
from roundelay.speech.lexicon import Lexicon
from roundelay.speech.stages import files_under
from roundelay.speech.store import fresh
from roundelay.speech.tree import Tree

Progress = Callable[[str, int, int], None]
GRAPHS = "graphs"
SIZES = "sizes.json"
_NAMES = {1: "unigram", 2: "bigram", 3: "trigram"}


@dataclass(frozen=True)
class LanguageSettings:
    """Say which language models decoding uses."""

    arpa: Path | None = None
    """A model to take instead of counting the training transcripts."""
    order: int = 2
    smoothing: Literal["kneser-ney", "witten-bell"] = "kneser-ney"
    ctc: bool = False
    """Make graphs of the CTC topology too."""

    def __post_init__(self) -> None:
        if self.order < 1:
            raise SettingsError(f"language model: order must be at least 1, not {self.order}")


def name_of(settings: LanguageSettings) -> str:
    """Name the graph of the language model: bigram, trigram, 4-gram, or arpa for one that was given."""
    return "arpa" if settings.arpa else _NAMES.get(settings.order, f"{settings.order}-gram")


def estimate(settings: LanguageSettings, training: Iterable[Sequence[str]], lexicon: Lexicon) -> ngram.NgramModel:
    """Read the given model, or count one over the lexicon's words."""
    if settings.arpa:
        return ngram.read_arpa(settings.arpa)
    estimator = ngram.kneser_ney if settings.smoothing == "kneser-ney" else ngram.witten_bell
    return estimator(ngram.count(training, settings.order), lexicon.words)


def write_graphs(
    folder: Path, settings: LanguageSettings, training: Sequence[Sequence[str]], held_out: Sequence[Sequence[str]],
    progress: Progress,
) -> Iterable[Path]:  # fmt: skip
    """Write the model as G.arpa and the graphs of it and of the flat model, with their sizes."""
    lexicon = Lexicon.read(folder / "lexicon.txt")
    tree = Tree.load(folder / "tree.safetensors")
    model = estimate(settings, training, lexicon)
    ngram.write_arpa(model, folder / "G.arpa")
    models = {"flat": ngram.flat(lexicon.words), name_of(settings): model}
    makers: dict[str, Callable[[], graph.Fst]] = {
        name: lambda m=m, name=name: graph.build(lexicon, m, tree, where=name)  # type: ignore[misc]  # bound now
        for name, m in models.items()
    }
    if settings.ctc:
        makers |= {
            f"{name}-ctc": lambda m=m, name=name: graph.ctc(lexicon, m, where=f"{name}-ctc")  # type: ignore[misc]
            for name, m in models.items()
        }
    graphs = fresh(folder / GRAPHS)
    sizes = {}
    for done, (name, make) in enumerate(makers.items(), 1):
        sizes[name] = _write(make(), graphs / f"{name}.fst")
        progress("graph", done, len(makers))
    texts = held_out or training
    report = {"order": model.order, "ngrams": len(model.logprobs), "graphs": sizes, "held_out": bool(held_out)}
    measured = {name: asdict(ngram.perplexity(m, texts)) for name, m in models.items()}
    write_json(graphs / SIZES, report | {"perplexity": measured})
    return [folder / "G.arpa", *files_under(graphs)]


def _write(fst: graph.Fst, path: Path) -> dict[str, Any]:
    with replacing(path) as partial:
        if not fst.write(str(partial)):
            raise OSError(0, "the graph could not be written", os.fspath(path))
    return {"states": fst.num_states, "arcs": graph.num_arcs(fst), "bytes": path.stat().st_size}
