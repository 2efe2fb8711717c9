"""Shared words and rules: records, contracts, errors, expressions, tolerances, known causes. No torch, no process."""
