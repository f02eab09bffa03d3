"""The embedded corpus: spelled words, numbers, dates, amounts and short commands, spoken by espeak-ng.

48 synthetic speakers (four accents, each with a voice variant, a rate and a pitch of its own) say sentences of a small
grammar (see ``sentences``, about 110 words); train, dev and test share no speaker.  Every sentence has a clean
utterance.  Every other sentence also has a copy with the same timing in a simulated room with noise at 20, 10 or 5 dB.
``reference.ctm`` has the times of phonemes and ``lexicon.txt`` the pronunciations as espeak-ng reports them (phones:
see ``espeak_phones``).

Beside the usual tables a split has ``utt2snr`` (dB, ``inf`` for clean), ``utt2clean`` (noisy copy and its clean
original), ``utt2noise``, ``utt2room``, ``utt2dur`` and ``closures.ctm`` (``reference.ctm`` with the closures of stops
counted to the stops, see ``stop_closures``).

The same seed gives the same bytes for any number of processes.  Licence: the audio is free to use; espeak-ng itself is
under the GPL, version 3, so it is an optional extra.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any

from roundelay.corpora.data_directory import Utterance, write_split
from roundelay.corpora.importer import Corpus
from roundelay.corpora.synthetic import script
from roundelay.corpora.synthetic.script import ScriptShard
from roundelay.errors import DataError, MissingExtra, SettingsError
from roundelay.files import data_errors, file_digest, inside_nested, make_folder, make_inside, read_json, write_text
from roundelay.formats.text_tables import write_table

FORMAT = 1
"""Increased when the same seed gives other bytes than before."""
MARKER = "synthetic.json"
_WORK = ".shards"

Progress = Callable[[int, int], None]
"""Called with the number of finished shards and the total."""


def make_corpus(out: Path, *, hours: float, seed: int = 0, jobs: int = 1, progress: Progress | None = None) -> None:
    """Make the corpus, or continue an interrupted run; do nothing if it is complete."""
    out = Path(out)
    _check(hours, jobs)
    wanted = {"corpus": "synthetic", "format": FORMAT, "hours": float(hours), "seed": seed}
    if _is_there(out, wanted):
        return
    work = _begin(out, wanted)
    shards = script.plan_shards(hours, seed)
    missing = [shard for shard in shards if not _is_whole(out, _result(work, shard))]
    if progress:
        progress(len(shards) - len(missing), len(shards))
    _run(out, seed, missing, jobs, progress, len(shards))
    totals = _write_tables(out, work, shards)
    write_text(out / MARKER, json.dumps(wanted | {"splits": totals}, indent=2) + "\n")
    shutil.rmtree(work, ignore_errors=True)


def _check(hours: float, jobs: int) -> None:
    if not math.isfinite(hours) or not 0 < hours <= 100_000:
        raise SettingsError(f"hours must be more than 0 (and at most 100000), not {hours}")
    if jobs < 1:
        raise SettingsError(f"jobs must be at least 1, not {jobs}")
    for package, extra in (("espeakng_loader", "synthetic"), ("soundfile", "speech"), ("soxr", "speech")):
        if importlib.util.find_spec(package) is None:
            raise MissingExtra(package.replace("_", "-"), extra)


def _is_there(out: Path, wanted: dict[str, Any]) -> bool:
    """Return whether the same corpus is complete; raise if the folder contains anything else."""
    if (out / MARKER).is_file():
        _same(out / MARKER, wanted, out)
        return True
    if out.is_dir() and not (out / _WORK).is_dir() and any(out.iterdir()):
        raise DataError(f"{out}: contains other files; give a new or empty folder")
    return False


def _same(path: Path, wanted: dict[str, Any], out: Path) -> None:
    try:
        found = json.loads(path.read_text())
        found = {key: found[key] for key in wanted}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: damaged; remove the folder {out} and start again") from error
    if found != wanted:
        given = ", ".join(f"{key} {found[key]}" for key in ("hours", "seed", "format"))
        asked = ", ".join(f"{key} {wanted[key]}" for key in ("hours", "seed", "format"))
        raise DataError(f"{out}: contains a synthetic corpus of {given}, not of {asked}; give another folder")


def _begin(out: Path, wanted: dict[str, Any]) -> Path:
    """Write the settings, so that only a run with the same settings continues this one."""
    work = inside_nested(out, _WORK, where=str(out))
    make_folder(out)
    with data_errors(work):
        work.mkdir(mode=0o700, exist_ok=True)  # unfinished work is for no other user
    if (work / "plan.json").is_file():
        _same(work / "plan.json", wanted, out)
    else:
        write_text(work / "plan.json", json.dumps(wanted))
    return work


def _result(work: Path, shard: ScriptShard) -> Path:
    return work / f"{shard.number:06d}.json"


def _is_whole(out: Path, result: Path) -> bool:
    """Return whether a shard was finished and all of its audio still exists."""
    if not result.is_file():
        return False
    rows = json.loads(result.read_text())
    return all(
        os.path.exists(out / row["path"]) and os.stat(out / row["path"]).st_size == row["size_bytes"] for row in rows
    )


def _run(out: Path, seed: int, shards: list[ScriptShard], jobs: int, progress: Progress | None, total: int) -> None:
    done = total - len(shards)
    pool = ThreadPoolExecutor(jobs)
    try:
        running = [pool.submit(_make_shard, out, seed, shard) for shard in shards]
        for future in as_completed(running):
            future.result()
            done += 1
            if progress:
                progress(done, total)
    finally:
        pool.shutdown(cancel_futures=True)


def _make_shard(out: Path, seed: int, shard: ScriptShard) -> None:
    """Run one new process, with one thread per numerical library: the processes already use all cores."""
    result = _result(out / _WORK, shard)
    command = [sys.executable, "-m", "roundelay.corpora.synthetic.shard"]
    command += [str(out.absolute()), str(seed), str(result.absolute()), json.dumps(asdict(shard))]
    single = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(command, env=os.environ | single, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"ended by signal {-done.returncode}"]
        raise DataError(f"{lines[-1]} (shard {shard.number} of the synthetic corpus)")


def _write_tables(out: Path, work: Path, shards: list[ScriptShard]) -> dict[str, dict[str, float]]:
    """Write every split's tables, then the lexicon and the checksums."""
    totals, lexicon = {}, set()
    sums: list[tuple[str, str]] = []
    for split in script.SHARES:
        rows = [row for shard in shards if shard.split == split for row in read_json(_result(work, shard))]
        _write_split(out, split, rows)
        totals[split] = {"utterances": len(rows), "seconds": round(sum(row["seconds"] for row in rows), 3)}
        lexicon |= {
            f"{w} {' '.join(p)}\n" for row in rows for w, p in zip(row["words"], row["pronunciations"], strict=True)
        }
        sums += [(row["path"], row["sha256"]) for row in rows]
    write_text(out / "lexicon.txt", "".join(sorted(lexicon)))
    for path in [out / "lexicon.txt", *(file for split in script.SHARES for file in (out / split).iterdir())]:
        sums.append((str(path.relative_to(out)), file_digest(path)))
    write_text(out / "SHA256SUMS", "".join(f"{digest}  {path}\n" for path, digest in sorted(sums)))
    return totals


def _write_split(out: Path, split: str, rows: list[dict[str, Any]]) -> None:
    folder = make_inside(out, split)
    write_table(folder / "utt2snr", ((row["id"], f"{row['snr']:g}") for row in rows))
    write_table(folder / "utt2clean", ((row["id"], row["clean"]) for row in rows if row["clean"]))
    write_table(folder / "utt2noise", ((row["id"], row["noise"]) for row in rows))
    write_table(folder / "utt2room", ((row["id"], row["room"]) for row in rows))
    write_table(folder / "utt2dur", ((row["id"], f"{row['seconds']:.4f}") for row in rows))
    for name, key in (("reference.ctm", "phones"), ("closures.ctm", "closures")):
        lines = [
            f"{row['id']} 1 {begin:.4f} {duration:.4f} {phone}\n"
            for row in sorted(rows, key=lambda row: str(row["id"]))
            for begin, duration, phone in row[key]
        ]
        write_text(folder / name, "".join(lines))
    write_split(folder, (Utterance(r["id"], out / r["path"], r["speaker"], tuple(r["words"])) for r in rows))


CORPUS = Corpus(
    name="synthetic",
    summary="spelled words, numbers, dates, amounts, commands; 48 synthetic speakers, any number of hours",
    licence="the audio is free; espeak-ng, which speaks it, is under GPL-3.0",
    import_splits=None,
)
