"""The public Python API. It checks its arguments and calls `runs` and `targets`."""
