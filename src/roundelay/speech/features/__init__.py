"""Features: audio to stored features, to network inputs, to minibatches."""
