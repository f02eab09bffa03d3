"""HMM-GMM: mixtures, trees, Viterbi, alignment, fMLLR, i-vectors."""
