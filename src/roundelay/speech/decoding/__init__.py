"""Decoding: bundle, search, word error rate, tuning, transcription, ONNX."""
