"""One learner's training: the loop, claims, recovery, checkpoints, evaluation."""
