"""The stage that makes the language model and the decoding graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from roundelay.config import check_bounds, limits
from roundelay.files import read_json, write_json
from roundelay.speech.features.array_store import make_empty_folder
from roundelay.speech.gmm.decision_tree import Tree
from roundelay.speech.language import decoding_graph, ngram
from roundelay.speech.language.lexicon import Lexicon
from roundelay.speech.preparation.cached_stages import files_under

Progress = Callable[[str, int, int], None]
GRAPHS = "graphs"
SIZES = "sizes.json"
ARPA = "G.arpa"
VOCABULARY = "vocabulary.txt"
_NAMES = {1: "unigram", 2: "bigram", 3: "trigram"}


@dataclass(frozen=True)
class LanguageSettings:
    """Settings of the language model."""

    arpa: Path | None = None
    """A given language model; None: estimate one from the training transcripts."""
    order: Annotated[int, limits(ge=1, largest=20)] = 2
    smoothing: Literal["kneser-ney", "witten-bell"] = "kneser-ney"
    ctc: bool = False
    """Whether to make graphs for CTC too."""

    def __post_init__(self) -> None:
        check_bounds(self, "language model: ")


def graph_name(settings: LanguageSettings) -> str:
    """Return the name of the language model's graph: bigram, trigram, 4-gram, or arpa for a given model."""
    return "arpa" if settings.arpa else _NAMES.get(settings.order, f"{settings.order}-gram")


def make_language_model(
    settings: LanguageSettings, training: Iterable[Sequence[str]], vocabulary: Sequence[str]
) -> ngram.NgramModel:
    """Read the given model, or estimate one; both have only words of the vocabulary."""
    if settings.arpa:
        return restrict_vocabulary(ngram.read_arpa(settings.arpa), vocabulary)
    estimator = ngram.kneser_ney if settings.smoothing == "kneser-ney" else ngram.witten_bell
    return estimator(ngram.count(training, settings.order), vocabulary)


def restrict_vocabulary(model: ngram.NgramModel, vocabulary: Iterable[str]) -> ngram.NgramModel:
    """Leave out all n-grams with words outside the vocabulary; their probability is not redistributed."""
    known = {*vocabulary, ngram.BEGIN, ngram.END}
    return ngram.NgramModel(
        model.order,
        {gram: value for gram, value in model.logprobs.items() if known.issuperset(gram)},
        {gram: value for gram, value in model.backoffs.items() if known.issuperset(gram)},
    )


def read_vocabulary(folder: Path) -> list[str]:
    """Read the words that can be recognised."""
    return (folder / VOCABULARY).read_text(encoding="utf-8").split()


def write_graphs(
    folder: Path, settings: LanguageSettings, training: Sequence[Sequence[str]], progress: Progress
) -> Iterable[Path]:
    """Write the model as G.arpa and the graphs of it and of the flat model, with their sizes.

    Words of the lexicon that are not in the vocabulary are in no model and no graph.  All ids are the lexicon's.
    """
    lexicon = Lexicon.read(folder / "lexicon.txt")
    tree = Tree.load(folder / "tree.safetensors")
    vocabulary = read_vocabulary(folder)
    model = make_language_model(settings, training, vocabulary)
    ngram.write_arpa(model, folder / ARPA)
    models = {"flat": ngram.flat(vocabulary), graph_name(settings): model}
    makers: dict[str, Callable[[], decoding_graph.Fst]] = {
        name: lambda m=m, name=name: decoding_graph.build_graph(lexicon, m, tree, where=name)  # type: ignore[misc]  # bound now
        for name, m in models.items()
    }
    if settings.ctc:
        makers |= {
            f"{name}-ctc": lambda m=m, name=name: decoding_graph.build_ctc_graph(lexicon, m, where=f"{name}-ctc")  # type: ignore[misc]
            for name, m in models.items()
        }
    graphs = make_empty_folder(folder / GRAPHS)
    sizes = {}
    for done, (name, make) in enumerate(makers.items(), 1):
        sizes[name] = _write(make(), graphs / f"{name}.fst")
        progress("graph", done, len(makers))
    write_json(graphs / SIZES, {"order": model.order, "ngrams": len(model.logprobs), "graphs": sizes})
    return [folder / ARPA, *files_under(graphs)]


def measure(
    folder: Path, settings: LanguageSettings, training: Sequence[Sequence[str]], held_out: Sequence[Sequence[str]]
) -> dict[str, Any]:
    """Return sizes and perplexities, on held-out transcripts if there are any, otherwise on those of training."""
    models = {"flat": ngram.flat(read_vocabulary(folder)), graph_name(settings): ngram.read_arpa(folder / ARPA)}
    measured = {name: asdict(ngram.perplexity(model, held_out or training)) for name, model in models.items()}
    sizes: dict[str, Any] = read_json(folder / GRAPHS / SIZES)
    return sizes | {"held_out": bool(held_out), "perplexity": measured}


def _write(fst: decoding_graph.Fst, path: Path) -> dict[str, Any]:
    decoding_graph.write_graph(fst, path)
    return {"states": fst.num_states, "arcs": decoding_graph.num_arcs(fst), "bytes": path.stat().st_size}
