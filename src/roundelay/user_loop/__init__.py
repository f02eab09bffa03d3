"""Training in a user loop: `roundelay.join` and its loaders."""
