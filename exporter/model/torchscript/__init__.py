"""TorchScript written from graphs of torch.export, wrapped around modules, and read by torch.export."""
