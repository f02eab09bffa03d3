"""Training in the user's own loop: `roundelay.join` and its loaders."""
