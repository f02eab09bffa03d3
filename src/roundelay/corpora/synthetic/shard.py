"""Make one shard of the synthetic corpus in a new process; ``generator`` runs this module with ``python -m``.

espeak-ng keeps state between utterances.  So a new process makes a whole shard, in the order of its takes: then its
bytes depend on nothing else.
"""

from __future__ import annotations

import hashlib
import io
import json
import random
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roundelay.corpora.espeak import Espeak, SpokenText
from roundelay.corpora.synthetic import noise, script, sentences
from roundelay.corpora.synthetic.espeak_phones import SILENCE, Phone, list_phones, list_pronunciations
from roundelay.corpora.synthetic.script import ScriptShard, Take
from roundelay.corpora.synthetic.stop_closures import move_closures
from roundelay.errors import RoundelayError, import_extra
from roundelay.files import data_errors, make_inside, write_text

RATE = 16000
CLEAN_SNR = 45.0
"""Signal-to-noise ratio of clean utterances: a real recording never has exact zeros."""
_NUM_BABBLING = 6
_LOUDEST = 0.95


@dataclass(frozen=True)
class ShardRow:
    """An utterance with all columns of the tables; times in seconds."""

    id: str
    speaker: str
    words: tuple[str, ...]
    snr: float
    noise: str
    room: str
    clean: str | None
    """For a noisy copy, the id of its clean original."""
    path: str
    sha256: str
    size_bytes: int
    seconds: float
    phones: list[tuple[float, float, str]]
    """Begin, duration and name, as espeak-ng reports them."""
    closures: list[tuple[float, float, str]]
    """The same, with closures counted to their stops."""
    pronunciations: list[tuple[str, ...]]


def make_shard(out: Path, seed: int, shard: ScriptShard) -> list[ShardRow]:
    """Speak and write the utterances of one shard."""
    espeak = Espeak()
    others = [] if shard.begin == shard.end else _make_babble_voices(espeak, seed, shard)
    rows = []
    for number in range(shard.begin, shard.end):
        take = script.plan_take(seed, shard.split, number)
        rows.extend(_TakeRecorder(espeak, seed, take, others).rows(out))
    return rows


def _make_babble_voices(espeak: Espeak, seed: int, shard: ScriptShard) -> list[noise.Samples]:
    rng = random.Random(f"{seed} babble {shard.split} {shard.begin}")  # noqa: S311 (nothing secret)
    people = script.list_speakers("train")[:: len(script.list_speakers("train")) // _NUM_BABBLING]
    said = [
        espeak.say(member.voice, script.spoken_text(sentences.make_sentence(rng) + sentences.make_sentence(rng)))
        for member in people
    ]
    voices = [_resampled(spoken.samples, espeak.rate) for spoken in said]
    return [voice / np.sqrt(np.mean(voice**2)) for voice in voices]


class _TakeRecorder:
    """Record one take: speak it, put silence around it, make the clean utterance and the noisy copy."""

    def __init__(self, espeak: Espeak, seed: int, take: Take, others: list[noise.Samples]) -> None:
        self.take, self.others = take, others
        self.rng = np.random.default_rng([seed, *take.id.encode()])
        self.spoken: SpokenText = espeak.say(take.speaker.voice, script.spoken_text(take.words))
        self.spoken_rate = espeak.rate
        self.lead = round(take.lead_seconds * RATE)
        voice = _resampled(self.spoken.samples, espeak.rate)
        trail = round(take.trail_seconds * RATE)
        self.speech = np.concatenate([np.zeros(self.lead), voice, np.zeros(trail)])
        self.active = slice(self.lead, self.lead + len(voice))
        self.speech *= 10 ** (take.level / 20) / np.sqrt(np.mean(self.speech[self.active] ** 2))

    def rows(self, out: Path) -> list[ShardRow]:
        """Write the utterance, and its noisy copy if the take has one."""
        take = self.take
        clean = noise.add_noise(self.speech, self._noise("pink"), self.active, CLEAN_SNR)
        quiet = {"snr": float("inf"), "noise": "none", "room": "none", "clean": None}
        rows = [self._row(out, take.id, clean, quiet)]
        if take.snr is not None:
            echoing = noise.add_echo(self.rng, self.speech, noise.ROOMS[take.room], RATE)
            noisy = noise.add_noise(echoing, self._noise(take.noise), self.active, take.snr)
            loud = {"snr": float(take.snr), "noise": take.noise, "room": take.room, "clean": take.id}
            rows.append(self._row(out, take.noisy_id, noisy, loud))
        return rows

    def _noise(self, name: str) -> noise.Samples:
        if name == "babble":
            return noise.babble(self.rng, len(self.speech), self.others)
        return noise.NOISES[name](self.rng, len(self.speech), RATE)

    def _row(self, out: Path, name: str, samples: noise.Samples, sound: dict[str, Any]) -> ShardRow:
        data = _flac(samples)
        path = Path("flac", self.take.speaker.name, f"{name}.flac")
        make_inside(out, *path.parent.parts)
        with data_errors(out / path):
            (out / path).write_bytes(data)
        found = list_phones(self.spoken)
        return ShardRow(
            id=name,
            speaker=self.take.speaker.name,
            words=self.take.words,
            path=str(path),
            sha256=hashlib.sha256(data).hexdigest(),
            size_bytes=len(data),
            seconds=len(samples) / RATE,
            phones=self._times(found),
            closures=self._times(move_closures(found, self.spoken, self.spoken_rate)),
            pronunciations=list_pronunciations(self.spoken, len(self.take.words)),
            **sound,
        )

    def _times(self, found: list[Phone]) -> list[tuple[float, float, str]]:
        """Convert samples to seconds, and add the silence before and after."""
        begins = [self.lead / RATE + phone.begin / self.spoken_rate for phone in found]
        names = [phone.name for phone in found]
        if names[0] != SILENCE:
            begins, names = [0.0, *begins], [SILENCE, *names]
        begins[0] = 0.0
        if names[-1] != SILENCE:
            begins, names = [*begins, self.active.stop / RATE], [*names, SILENCE]
        ends = [*begins[1:], len(self.speech) / RATE]
        return [(round(b, 4), round(e - b, 4), name) for b, e, name in zip(begins, ends, names, strict=True)]


def _resampled(samples: NDArray[np.int16], rate: int) -> noise.Samples:
    soxr = import_extra("soxr", "speech")
    result: noise.Samples = soxr.resample(samples.astype(np.float64) / 32768.0, rate, RATE)
    return result


def _flac(samples: noise.Samples) -> bytes:
    peak = float(np.max(np.abs(samples)))
    whole = np.round(samples * (32767 * min(1.0, _LOUDEST / peak))).astype(np.int16)
    memory = io.BytesIO()
    import_extra("soundfile", "speech").write(memory, whole, RATE, format="FLAC", subtype="PCM_16")
    return memory.getvalue()


def main(arguments: list[str]) -> int:
    """Make the shard that the arguments describe: folder, seed, result file, and the shard as JSON."""
    out, seed, result, shard = arguments
    try:
        rows = make_shard(Path(out), int(seed), ScriptShard(**json.loads(shard)))
        write_text(Path(result), json.dumps([asdict(row) for row in rows]))
    except RoundelayError as error:
        print(error, file=sys.stderr)  # noqa: T201 (the parent process reads this line)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
