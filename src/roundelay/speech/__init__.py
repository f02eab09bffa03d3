"""From audio to aligned features, and from posteriors to words.  Knows nothing of strategies."""
