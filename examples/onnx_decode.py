"""Decode a wav with the ONNX file of a run, without torch and without Roundelay.

    roundelay export runs/mine --onnx
    python examples/onnx_decode.py runs/mine recording.wav

Needs onnxruntime, kaldi-native-fbank, kaldifst, kaldi-decoder and soundfile; the recording has the model's sample rate.
"""

import json
import sys
from pathlib import Path

import kaldi_decoder
import kaldi_native_fbank as knf
import kaldifst
import numpy as np
import onnxruntime
import soundfile

SCALE, PRIOR, BEAM = 0.3, 0.5, 13.0  # 'roundelay decode' tunes the first two on dev, and prints them


def read_features(wav, settings):
    options = knf.FbankOptions()
    options.frame_opts.samp_freq, options.frame_opts.dither = settings["rate"], 0.0
    options.frame_opts.snip_edges, options.mel_opts.num_bins = settings["snip_edges"], settings["num_bins"]
    samples, rate = soundfile.read(wav, dtype="float32")
    assert rate == settings["rate"], f"{wav}: {rate} Hz, but the model was trained on {settings['rate']} Hz"
    fbank = knf.OnlineFbank(options)
    fbank.accept_waveform(rate, (32768 * samples).tolist())
    fbank.input_finished()
    return np.stack([fbank.get_frame(k) for k in range(fbank.num_frames_ready)])


def decode(run, wav, language):
    session = onnxruntime.InferenceSession(run / "model.onnx", providers=["CPUExecutionProvider"])
    about = session.get_modelmeta().custom_metadata_map
    assert about["standalone"] == "true", "features adapted to the speaker need 'roundelay transcribe'"
    features = read_features(wav, json.loads(about["features"]))
    (scores,) = session.run(["log_posteriors"], {"features": features[None]})
    scores = SCALE * (scores[0] - PRIOR * np.log(json.loads(about["priors"])))
    graph = kaldifst.StdConstFst(kaldifst.StdVectorFst.read(str(run / "acoustic" / "graphs" / f"{language}.fst")))
    decoder = kaldi_decoder.FasterDecoder(graph, kaldi_decoder.FasterDecoderOptions(beam=BEAM, max_active=2000))
    decoder.decode(kaldi_decoder.DecodableCtc(np.ascontiguousarray(scores, np.float32)))
    _, path = decoder.get_best_path(use_final_probs=decoder.reached_final())
    words = dict(line.split()[::-1] for line in (run / "acoustic" / "words.txt").read_text().splitlines())
    return " ".join(words[str(k)] for k in kaldifst.get_linear_symbol_sequence(path)[2])


if __name__ == "__main__":
    print(decode(Path(sys.argv[1]), sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else "bigram"))
