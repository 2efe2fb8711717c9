"""Turning a name into a flat module, an exported program and TorchScript: sources, checkpoints, flattening, capture."""
