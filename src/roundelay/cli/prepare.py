"""``roundelay prepare``: from a corpus to aligned training data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from roundelay.cli.progress_bars import bars

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
@click.option("--given-features", is_flag=True, help="Take them from feats.scp in each split (Kaldi's archives).")
@click.option("--bins", default=40, show_default=True, type=click.IntRange(3), help="Mel bins.")
@click.option("--rate", default=16000, show_default=True, type=click.IntRange(4000), help="Samples per second.")
@click.option(
    "--normalise",
    default="speaker",
    show_default=True,
    type=click.Choice(["speaker", "utterance", "global", "none"]),
    help="Over what features get mean 0 and variance 1.",
)
@click.option("--speed", "speeds", multiple=True, type=click.FloatRange(0.5, 2), help="Add copies at this speed too.")
@click.option("--lexicon", type=_FILE, help="Word and phones, a pronunciation a line; else the corpus's lexicon.txt.")
@click.option("--dictionary", type=_FILE, help="Where words are looked up that the lexicon lacks (CMU dictionary).")
@click.option(
    "--unknown",
    default="none",
    show_default=True,
    type=click.Choice(["none", "grapheme", "espeak"]),
    help="How to guess all other pronunciations; none makes them an error.",
)
@click.option(
    "--vocabulary",
    default="lexicon",
    show_default=True,
    type=click.Choice(["lexicon", "train"]),
    help="What can be recognised: words of the lexicon and of training, or of training only.",
)
@click.option("--senones", default=300, show_default=True, type=click.IntRange(1), help="Tied triphone states.")
@click.option("--gaussians", type=click.IntRange(1), help="Of the HMM-GMM; else ten for every three senones.")
@click.option("--adapt", is_flag=True, help="LDA+MLLT and fMLLR per speaker: a second set of features.")
@click.option(
    "--ivectors", is_flag=False, flag_value=100, type=click.IntRange(1), metavar="[SIZE]",
    help="Make speaker vectors, of 100 numbers unless told.",
)  # fmt: skip
@click.option(
    "--ivectors-per",
    default="speaker",
    show_default=True,
    type=click.Choice(["speaker", "utterance"]),
    help="What a vector stands for.",
)
@click.option(
    "--hmm-hours",
    default=10.0,
    show_default=True,
    type=click.FloatRange(0, min_open=True),
    help="At most this much trains the HMM-GMM.",
)
@click.option("--alignments", type=_FILE, help="Take these (HTK, TextGrid, CTM, Kaldi, runs) instead of an HMM-GMM.")
@click.option("--arpa", type=_FILE, help="Language model; else one is counted on the training transcripts.")
@click.option("--order", default=2, show_default=True, type=click.IntRange(1), help="Of the counted language model.")
@click.option("--smoothing", default="kneser-ney", show_default=True, type=click.Choice(["kneser-ney", "witten-bell"]))
@click.option("--ctc", is_flag=True, help="Make graphs of the CTC topology too.")
@click.option(
    "--export-alignments", "exports", type=click.Choice(["ctm", "textgrid"]), multiple=True,
    help="Also write the alignments in this format.",
)  # fmt: skip
@click.option("--seed", default=0, show_default=True, type=int)
@click.option("--json", "as_json", is_flag=True, help="Print the summary as one JSON object.")
def command(*, corpus: Path, out: Path, jobs: int, exports: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Prepare CORPUS: features, lexicon, aligned HMM states and decoding graphs.

    CORPUS is a folder in the layout that `roundelay corpus` makes: train, dev and test with wav.scp, text and utt2spk.
    Stages that were done before from the same files and settings are not done again.
    """
    from roundelay.speech.preparation.alignment_export import export_alignments
    from roundelay.speech.preparation.data_summary import summary_lines
    from roundelay.speech.preparation.pipeline import prepare

    with bars() as progress:
        outcome = prepare(corpus, out, _settings(options), jobs=jobs, progress=progress)
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
