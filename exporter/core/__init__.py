"""Shared types and rules: records, contracts, errors, tolerances, known causes. No torch and no child processes."""
