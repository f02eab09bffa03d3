"""Train acoustic models for speech recognition on many learners at once."""
