"""Pre-training: RBM and layer-wise stages that run before the experiment itself."""
