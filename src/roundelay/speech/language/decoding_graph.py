"""Decoding graphs: language model, lexicon, context and HMM states as one transducer from senones to words.

Input labels are ``senone + 1``, as kaldi-decoder requires, and output labels are word ids.  ``build_graph`` makes the
graph of a language model, ``build_linear_graph`` that of one transcript.  ``build_ctc_graph`` and
``build_linear_ctc_graph`` do the same for CTC models, whose outputs are phones, with the blank in silence's place.
"""

from __future__ import annotations

import logging
import math
import os
import struct
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from roundelay.errors import DataError, import_extra
from roundelay.files import replacing
from roundelay.speech.language.context_expansion import (
    ContextTree,
    PhysicalTriphones,
    StateNetwork,
    add_ctc_blanks,
    add_self_loops,
    expand_contexts,
    expand_states,
)
from roundelay.speech.language.lexicon import Lexicon, Pronunciation
from roundelay.speech.language.ngram import BEGIN, END, NEVER, Ngram, NgramModel

kaldifst = import_extra("kaldifst", "speech")
if TYPE_CHECKING:
    Fst = Any  # kaldifst publishes no types

_log = logging.getLogger(__name__)
_LN10 = math.log(10.0)
_DELTA = 2.0**-14  # rounding of costs when states are merged; the default, 2^-10, adds up over a long sentence


def build_graph(
    lexicon: Lexicon, model: NgramModel, tree: ContextTree, *, silence_probability: float = 0.5, where: str = "graph"
) -> Fst:
    """Make the graph of a language model: H, C, L and G composed, determinised and minimised."""
    grammar = _lexicon_and_grammar(lexicon, model, silence_probability)
    physical = PhysicalTriphones(tree)
    triphones = to_fst(expand_contexts(from_fst(grammar), len(lexicon.phones), physical))
    kaldifst.determinize_star(triphones)
    states = to_fst(expand_states(from_fst(triphones), physical))
    kaldifst.determinize_star(states)
    kaldifst.minimize_encoded(states, _DELTA)
    result = _finish(add_self_loops(from_fst(states)))
    _log.info(
        "%s: %d states, %d arcs from a grammar of %d states and %d physical triphones",
        where, result.num_states, num_arcs(result), grammar.num_states, len(physical.triples),
    )  # fmt: skip
    return result


def build_ctc_graph(lexicon: Lexicon, model: NgramModel, *, where: str = "graph") -> Fst:
    """Make the graph of a language model for a model trained by CTC on phones."""
    grammar = _lexicon_and_grammar(lexicon, model, silence_probability=0.0)
    result = _finish(add_ctc_blanks(from_fst(grammar), len(lexicon.phones)))
    _log.info("%s: %d states, %d arcs (CTC)", where, result.num_states, num_arcs(result))
    return result


def build_linear_graph(
    words: Sequence[str], lexicon: Lexicon, tree: ContextTree, *, silence_probability: float = 0.5
) -> Fst:
    """Make the graph of one transcript: all pronunciations, and silence or none between words and at the ends."""
    physical = PhysicalTriphones(tree)
    phones = _transcript(words, lexicon, silence_probability)
    return _finish(add_self_loops(expand_states(expand_contexts(phones, len(lexicon.phones), physical), physical)))


def build_linear_ctc_graph(words: Sequence[str], lexicon: Lexicon) -> Fst:
    """Make the CTC graph of one transcript, with all pronunciations."""
    return _finish(add_ctc_blanks(_transcript(words, lexicon, 0.0), len(lexicon.phones)))


def num_arcs(fst: Fst) -> int:
    """Count the arcs of a transducer."""
    return sum(fst.num_arcs(state) for state in kaldifst.StateIterator(fst))


def write_graph(fst: Fst, path: Path) -> None:
    """Write a graph atomically."""
    with replacing(path) as partial:
        if not fst.write(str(partial)):
            raise OSError(0, "the graph could not be written", os.fspath(path))


def read_graph(path: str | os.PathLike[str]) -> Fst:
    """Read what ``write_graph`` wrote; its counts are checked first, since OpenFst takes memory for what they say."""
    fst = None
    try:
        if _leads_somewhere(Path(path).read_bytes()):
            fst = kaldifst.StdVectorFst.read(os.fspath(path))
    except (OSError, RuntimeError, ValueError, MemoryError):  # OpenFst may raise any of them
        fst = None
    if fst is None:
        raise DataError(f"{path}: not a graph that can be read")
    return fst


def _leads_somewhere(file: bytes) -> bool:
    """Return whether every arc ends in an existing state; searching a damaged graph would crash the process.

    This reads the bytes of the file, since kaldifst returns arcs one by one, which takes 5 microseconds each.
    """
    try:
        begin = _end_of_names(file)
        start, states = struct.unpack_from("<qq", file, begin + 16)
        if not 0 <= 12 * states <= len(file):  # a state has 12 bytes at least
            return False
        if not 0 <= start < states:
            return bool(states == 0)
        targets = _arcs(file, states)[:, 3]
    except (struct.error, ValueError, IndexError, OverflowError):
        return False
    return bool(((targets >= 0) & (targets < states)).all())


def _end_of_names(file: bytes) -> int:
    """Return where the two strings of a header end."""
    end = 4
    for _ in range(2):
        end += 4 + int(struct.unpack_from("<i", file, end)[0])
    return end


def _arcs(file: bytes, states: int) -> npt.NDArray[np.int32]:
    """Return input, output, cost (as bits) and target of all arcs in OpenFst's file of a vector transducer.

    The file is a header with two strings, then for each state its cost as a float, its number of arcs in eight bytes,
    and four numbers of four bytes per arc.
    """
    begin = _end_of_names(file) + 40
    heads, place = np.empty(states, np.int64), 0
    for state in range(states):
        heads[state] = place
        place += 3 + 4 * int(struct.unpack_from("<q", file, begin + 4 * place + 4)[0])
    numbers = np.frombuffer(file, np.dtype("<i4"), offset=begin)
    if place != len(numbers):
        raise ValueError(f"{len(numbers)} numbers where {place} are expected")
    of_arcs = np.ones(place, bool)
    for i in range(3):
        of_arcs[heads + i] = False
    return numbers[of_arcs].reshape(-1, 4)


def to_fst(network: StateNetwork) -> Fst:
    """Turn lists into a transducer."""
    fst = kaldifst.StdVectorFst()
    fst.reserve_states(len(network.arcs))
    for _ in network.arcs:
        fst.add_state()
    fst.start = 0
    for state, arcs in enumerate(network.arcs):
        for label, output, cost, target in arcs:
            fst.add_arc(state, kaldifst.StdArc(label, output, cost, target))
    for state, cost in network.finals.items():
        fst.set_final(state, cost)
    return fst


def from_fst(fst: Fst) -> StateNetwork:
    """Turn a transducer into lists; its start becomes state 0."""
    network = StateNetwork([[] for _ in range(fst.num_states)])
    start = fst.start

    def renumbered(state: int) -> int:
        return 0 if state == start else start if state == 0 else state

    for state in kaldifst.StateIterator(fst):
        source = renumbered(state)
        network.arcs[source] = [
            (arc.ilabel, arc.olabel, arc.weight.value, renumbered(arc.nextstate))
            for arc in kaldifst.ArcIterator(fst, state)
        ]
        cost = fst.final(state).value
        if cost != math.inf:
            network.finals[source] = cost
    return network


def _finish(network: StateNetwork) -> Fst:
    fst = to_fst(network)
    kaldifst.connect(fst)
    kaldifst.arcsort(fst, "ilabel")
    return fst


def _lexicon_and_grammar(lexicon: Lexicon, model: NgramModel, silence_probability: float) -> Fst:
    """Compose L and G, determinised and minimised, with disambiguation symbols on the phone side."""
    spoken = to_fst(lexicon_network(lexicon, silence_probability))
    kaldifst.arcsort(spoken, "olabel")
    grammar = to_fst(grammar_network(lexicon, model))
    kaldifst.connect(grammar)
    kaldifst.arcsort(grammar, "ilabel")
    both = kaldifst.compose(spoken, grammar)
    kaldifst.determinize_star(both)
    kaldifst.minimize_encoded(both, _DELTA)
    return both


def grammar_network(lexicon: Lexicon, model: NgramModel) -> StateNetwork:
    """Turn a language model into an acceptor of word ids; back-off arcs have the label ``#0``, the id after all words.

    A sentence begins in the history ``<s>`` and ends with a final cost.  N-grams with a word that the lexicon lacks are
    left out, and words that the model lacks cannot be recognised.  Both are logged.
    """
    ids = lexicon.word_ids
    histories = _histories(model)
    network = StateNetwork([[] for _ in histories])
    backoff_label = len(ids) + 1
    for gram, logprob in model.logprobs.items():
        *context, word = gram
        source = histories[tuple(context)]
        if logprob <= NEVER or word == BEGIN:
            continue
        if word == END:
            network.finals[source] = -logprob * _LN10
        elif word in ids:
            network.arcs[source].append((ids[word], ids[word], -logprob * _LN10, _longest(histories, gram)))
    for history, state in histories.items():
        weight = model.backoffs.get(history, 0.0)
        if history and weight > NEVER:
            network.arcs[state].append((backoff_label, 0, -weight * _LN10, _longest(histories, history[1:])))
    _log_differences(lexicon, model)
    if not any(output for arcs in network.arcs for _, output, _, _ in arcs):
        raise DataError("graph: no word of the lexicon is in the language model")
    return network


def _histories(model: NgramModel) -> dict[Ngram, int]:
    """Map the histories of all n-grams to numbers; the history of a sentence's begin is 0."""
    begin: Ngram = (BEGIN,) if model.order > 1 else ()
    numbers: dict[Ngram, int] = {begin: 0}
    numbers.setdefault((), len(numbers))
    for gram in model.logprobs:
        numbers.setdefault(gram[:-1], len(numbers))
    return numbers


def _longest(histories: dict[Ngram, int], gram: Ngram) -> int:
    """Return the state of the longest suffix of ``gram`` that is a history."""
    while gram not in histories:
        gram = gram[1:]
    return histories[gram]


def _log_differences(lexicon: Lexicon, model: NgramModel) -> None:
    listed = set(model.vocabulary)
    absent = sorted(lexicon.word_ids.keys() - listed)
    unspoken = sorted(word for word in listed - lexicon.word_ids.keys() if not word.startswith("<"))
    if absent:
        _log.warning("language model lacks %d words of the lexicon: %s", len(absent), _some(absent))
    if unspoken:
        _log.warning("lexicon lacks %d words of the language model: %s", len(unspoken), _some(unspoken))


def _some(words: Sequence[str]) -> str:
    return " ".join(words[:8]) + (" ..." if len(words) > 8 else "")


def lexicon_network(lexicon: Lexicon, silence_probability: float = 0.5) -> StateNetwork:
    """Turn a lexicon into a transducer from phone ids to word ids, with optional silence before and after each word.

    Homophones and words that are prefixes of others end in ``#1``, ``#2`` ... (ids after the phones), and silence ends
    in another symbol.  ``#0`` is the language model's back-off.  Without these symbols determinisation is impossible.
    """
    network = StateNetwork()
    start, loop = network.add_state(), network.add_state()
    network.finals[loop] = 0.0
    marks = disambiguate(lexicon)
    first_mark = len(lexicon.phones) + 1  # #0
    silent, spoken = _silence_costs(silence_probability)
    network.arcs[start].append((0, 0, spoken, loop))
    after = loop
    if silence_probability > 0:
        after, paused = network.add_state(), network.add_state()
        network.arcs[start].append((0, 0, silent, after))
        network.arcs[after].append((lexicon.phone_ids[lexicon.silence], 0, 0.0, paused))
        network.arcs[paused].append((first_mark + max(marks.values(), default=0) + 1, 0, 0.0, loop))
    network.arcs[loop].append((first_mark, len(lexicon.words) + 1, 0.0, loop))
    for (word, variant), mark in marks.items():
        labels = [lexicon.phone_ids[phone] for phone in variant] + ([first_mark + mark] if mark else [])
        output, state = lexicon.word_ids[word], loop
        for label in labels[:-1]:
            target = network.add_state()
            network.arcs[state].append((label, output, 0.0, target))
            state, output = target, 0
        network.arcs[state].append((labels[-1], output, spoken, loop))
        if after != loop:
            network.arcs[state].append((labels[-1], output, silent, after))
    return network


def disambiguate(lexicon: Lexicon) -> dict[tuple[str, Pronunciation], int]:
    """Return the number of the disambiguation symbol of each pronunciation; 0 if it needs none."""
    entries = [(word, variant) for word in lexicon.words for variant in lexicon[word]]
    same = Counter(variant for _, variant in entries)
    begins = {variant[:n] for variant in same for n in range(1, len(variant))}
    used: Counter[Pronunciation] = Counter()
    marks = {}
    for word, variant in entries:
        needed = same[variant] > 1 or variant in begins
        used[variant] += needed
        marks[word, variant] = used[variant] if needed else 0
    return marks


def _silence_costs(probability: float) -> tuple[float, float]:
    if probability <= 0:
        return math.inf, 0.0
    return -math.log(probability), -math.log1p(-probability)


def _transcript(words: Sequence[str], lexicon: Lexicon, silence_probability: float) -> StateNetwork:
    """Turn a transcript into a network from phone ids to word ids."""
    network = StateNetwork()
    silent, spoken = _silence_costs(silence_probability)

    def pause(before: int) -> int:
        if silence_probability <= 0:
            return before
        after = network.add_state()
        network.arcs[before] += [
            (lexicon.phone_ids[lexicon.silence], 0, silent, after),
            (0, 0, spoken, after),
        ]
        return after

    state = pause(network.add_state())
    for word in words:
        end = network.add_state()
        for variant in lexicon[word]:
            source, output = state, lexicon.word_ids[word]
            for i, phone in enumerate(variant):
                target = end if i == len(variant) - 1 else network.add_state()
                network.arcs[source].append((lexicon.phone_ids[phone], output, 0.0, target))
                source, output = target, 0
        state = pause(end)
    network.finals[state] = 0.0
    return network
