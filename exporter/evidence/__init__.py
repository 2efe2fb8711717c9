"""Is an artifact right, and how fast is it? Goldens, parity, statistics. Knows no target, process or bundle."""
