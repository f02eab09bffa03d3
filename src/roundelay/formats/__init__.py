"""Files of other programs: audio, SPHERE, Kaldi archives and tables, CTM, TextGrid."""
