"""Grammars for decoding: one of the run's languages, or a new graph of another lexicon and language model."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from pathlib import Path

from roundelay.errors import DataError
from roundelay.files import file_digest
from roundelay.speech.decoding.acoustic_bundle import Bundle
from roundelay.speech.language import ngram
from roundelay.speech.language.lexicon import Lexicon, read_pronunciations
from roundelay.speech.preparation.language_stage import restrict_vocabulary


@dataclass(frozen=True)
class Grammar:
    """A graph and the lexicon of its output words; both are paths, so that they can be sent to processes."""

    name: str
    graph: Path
    lexicon: Path

    def digest(self) -> str:
        """Return the digest of the graph."""
        return file_digest(self.graph)

    def words(self) -> list[str]:
        """List the words; the id in the graph is the index here plus one."""
        return Lexicon.read(self.lexicon).words


@dataclass(frozen=True)
class FixedPhoneLexicon(Lexicon):
    """A lexicon with the phones and phone numbers of a run's tree, even if no word uses some of them."""

    known: tuple[str, ...] = field(default=())

    @functools.cached_property
    def phones(self) -> list[str]:
        """List silence, then all other phones of the run."""
        return list(self.known)


def find_grammar(bundle: Bundle, language: str | None = None) -> Grammar:
    """Return a language of the run; default: the language model of its prepared data."""
    language = language or bundle.first_pass
    return Grammar(language, bundle.graph_path(language), bundle.folder / "lexicon.txt")


def build_grammar(
    bundle: Bundle, folder: Path, *, language: str = "flat", lexicon: Path | None = None, arpa: Path | None = None
) -> Grammar:
    """Build the graph of another lexicon or language model, or both, with the run's phones and senones.

    Without ``arpa``, any word may follow any other (``flat``), or the run's language model is used for the words that
    both have.
    """
    from roundelay.speech.language.decoding_graph import build_ctc_graph, build_graph, write_graph

    spoken = read_known_lexicon(bundle, lexicon)
    if arpa is not None:
        name, model = arpa.stem, restrict_vocabulary(ngram.read_arpa(arpa), spoken.words)
    elif language == "flat":
        name, model = "flat", ngram.flat(spoken.words if lexicon else bundle.vocabulary)
    else:
        bundle.graph_path(language)  # raises if the language is unknown
        name, model = language, restrict_vocabulary(ngram.read_arpa(bundle.folder / "G.arpa"), spoken.words)
    name = f"{lexicon.stem}-{name}" if lexicon else name
    fst = (
        build_ctc_graph(spoken, model, where=name)
        if bundle.ctc
        else build_graph(spoken, model, bundle.tree, where=name)
    )
    folder.mkdir(parents=True, exist_ok=True)
    spoken.write(folder / "lexicon.txt")
    write_graph(fst, folder / f"{name}.fst")
    return Grammar(name, folder / f"{name}.fst", folder / "lexicon.txt")


def read_known_lexicon(bundle: Bundle, lexicon: Path | None) -> FixedPhoneLexicon:
    """Read a lexicon, by default the run's; raise if a word has a phone that the run was not trained on."""
    pronunciations = read_pronunciations(lexicon) if lexicon else bundle.lexicon.pronunciations
    known = set(bundle.phones)
    for word, variants in pronunciations.items():
        for phone in (phone for variant in variants for phone in variant):
            if phone not in known:
                raise DataError(
                    f"{lexicon}: {word!r} has the phone {phone!r}, which {bundle.run} was not trained on; write it "
                    f"with {' '.join(bundle.phones[1:])}"
                )
    return FixedPhoneLexicon(pronunciations, known=tuple(bundle.phones))
