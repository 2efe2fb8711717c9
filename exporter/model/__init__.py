"""From a name to a flat module, an exported program and TorchScript: sources, checkpoints, flattening, capture."""
