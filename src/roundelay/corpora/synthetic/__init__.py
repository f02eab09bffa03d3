"""The embedded corpus: a script of sentences, spoken by espeak-ng, with noise, in shards."""
