"""Writing TorchScript from torch.export graphs, wrapping scripted modules, and exporting TorchScript programs."""
