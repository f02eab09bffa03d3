"""Language: lexicon, n-grams, decoding graphs."""
