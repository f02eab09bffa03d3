"""``roundelay prepare``: from a corpus to aligned training data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from roundelay.cli.screen.dry_run_output import preparation_line, show_preparation
from roundelay.cli.screen.progress_bars import bars

_FILE = click.Path(path_type=Path, exists=True)


@click.command(
    epilog="""\b
Examples:
  roundelay prepare corpora/an4 --out data/an4 --jobs 2
  roundelay prepare corpora/talks --out data/talks --dictionary cmudict.dict --unknown espeak
  roundelay prepare corpora/an4 --out data/an4-adapted --adapt --ivectors 50 --jobs 2
  roundelay prepare corpora/an4 --out data/an4-given --alignments corpora/an4/align/states.txt.gz"""
)
@click.argument("corpus", type=click.Path(path_type=Path))
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder of the prepared data.")
@click.option("--jobs", default=1, show_default=True, type=click.IntRange(1), help="Cores to use.")
@click.option("--features", "kind", default="fbank", show_default=True, type=click.Choice(["fbank", "mfcc"]))
@click.option("--given-features", is_flag=True, help="Use the features in each split's feats.scp (Kaldi archives).")
@click.option("--bins", default=40, show_default=True, type=click.IntRange(3), help="Mel bins.")
@click.option("--rate", default=16000, show_default=True, type=click.IntRange(4000), help="Samples per second.")
@click.option(
    "--normalise",
    default="speaker",
    show_default=True,
    type=click.Choice(["speaker", "utterance", "global", "none"]),
    help="Group of utterances over which features get mean 0 and variance 1.",
)
@click.option("--speed", "speeds", multiple=True, type=click.FloatRange(0.5, 2), help="Add copies at this speed.")
@click.option("--lexicon", type=_FILE, help="A word and its phones per line; default: the corpus's lexicon.txt.")
@click.option("--dictionary", type=_FILE, help="Dictionary for words that the lexicon lacks (CMU dictionary).")
@click.option(
    "--unknown",
    default="none",
    show_default=True,
    type=click.Choice(["none", "grapheme", "espeak"]),
    help="How to guess the pronunciation of other words; with none they are an error.",
)
@click.option(
    "--vocabulary",
    default="lexicon",
    show_default=True,
    type=click.Choice(["lexicon", "train"]),
    help="Words that can be recognised: those of lexicon and training, or of training only.",
)
@click.option("--senones", default=300, show_default=True, type=click.IntRange(1), help="Tied triphone states.")
@click.option("--gaussians", type=click.IntRange(1), help="Gaussians of the HMM-GMM; default: ten per three senones.")
@click.option("--adapt", is_flag=True, help="Add a second set of features: LDA+MLLT and fMLLR per speaker.")
@click.option(
    "--ivectors", is_flag=False, flag_value=100, type=click.IntRange(1), metavar="[SIZE]",
    help="Make speaker vectors; default size: 100.",
)  # fmt: skip
@click.option(
    "--ivectors-per",
    default="speaker",
    show_default=True,
    type=click.Choice(["speaker", "utterance"]),
    help="One vector per speaker or per utterance.",
)
@click.option(
    "--hmm-hours",
    default=10.0,
    show_default=True,
    type=click.FloatRange(0, min_open=True),
    help="Train the HMM-GMM on at most this many hours.",
)
@click.option("--alignments", type=_FILE, help="Use these (HTK, TextGrid, CTM, Kaldi, runs); train no HMM-GMM.")
@click.option("--arpa", type=_FILE, help="Language model; default: estimated from the training transcripts.")
@click.option(
    "--order", default=2, show_default=True, type=click.IntRange(1), help="Order of the estimated language model."
)
@click.option("--smoothing", default="kneser-ney", show_default=True, type=click.Choice(["kneser-ney", "witten-bell"]))
@click.option("--ctc", is_flag=True, help="Also make graphs for CTC models.")
@click.option(
    "--export-alignments", "exports", type=click.Choice(["ctm", "textgrid"]), multiple=True,
    help="Also write the alignments in this format.",
)  # fmt: skip
@click.option("--seed", default=0, show_default=True, type=int)
@click.option("--dry-run", is_flag=True, help="Print what would be done and about how long it takes; do nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as one JSON object.")
def command(*, corpus: Path, out: Path, jobs: int, exports: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Prepare CORPUS: features, lexicon, aligned HMM states and decoding graphs.

    CORPUS is a folder in the layout that `roundelay corpus` makes: train, dev and test with wav.scp, text and utt2spk.
    Stages whose files and settings have not changed are not repeated.
    """
    from roundelay.speech.preparation.alignment_export import export_alignments
    from roundelay.speech.preparation.data_summary import summary_lines
    from roundelay.speech.preparation.pipeline import prepare, preview

    settings = _settings(options)
    ahead = preview(corpus, out, settings, jobs=jobs)
    if options["dry_run"]:
        show_preparation(ahead, out, as_json=as_json)
        return
    click.echo(preparation_line(ahead), err=True)
    with bars() as progress:
        outcome = prepare(corpus, out, settings, jobs=jobs, progress=progress)
    written = [str(path) for kind in exports for path in export_alignments(outcome.data, kind)]
    if as_json:
        done = {"out": str(out), "done": outcome.done, "digest": outcome.data.digest, "exported": written}
        click.echo(json.dumps(done | {"summary": outcome.summary}, ensure_ascii=False))
        return
    click.echo("\n".join(summary_lines(outcome.summary)))
    click.echo(f"{out}: {'done: ' + ', '.join(outcome.done) if outcome.done else 'nothing to do'}")


def _settings(options: dict[str, Any]) -> Any:
    """Turn the command line's options into settings."""
    from roundelay.speech.features.mel_features import FeatureSettings
    from roundelay.speech.gmm.gmm_training import GmmSettings
    from roundelay.speech.preparation.language_stage import LanguageSettings
    from roundelay.speech.preparation.pipeline import IvectorSettings, LexiconSettings, PrepareSettings

    size = options["ivectors"]
    ivectors = IvectorSettings(size, options["ivectors_per"], seed=options["seed"]) if size else None
    return PrepareSettings(
        features=FeatureSettings(
            kind=options["kind"],
            num_bins=options["bins"],
            num_ceps=min(13, options["bins"]),
            rate=options["rate"],
        ),
        normalise=options["normalise"],
        speeds=tuple(options["speeds"]),
        given_features=options["given_features"],
        lexicon=LexiconSettings(options["lexicon"], options["dictionary"], options["unknown"], options["vocabulary"]),
        hmm=GmmSettings(
            num_senones=options["senones"],
            num_gaussians=options["gaussians"] or options["senones"] * 10 // 3,
            adapt=options["adapt"],
            seed=options["seed"],
        ),
        hmm_hours=options["hmm_hours"],
        alignments=options["alignments"],
        language=LanguageSettings(options["arpa"], options["order"], options["smoothing"], options["ctc"]),
        ivectors=ivectors,
    )
