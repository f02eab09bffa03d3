"""One file a corpus, all ending in one layout: Kaldi-style data directories."""
