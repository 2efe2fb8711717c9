"""The Python API: what `exporter` offers to import. It checks what it is given and calls `runs` and `targets`."""
