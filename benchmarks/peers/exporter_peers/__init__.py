"""Targets that benchmarks/fastest.py compares exporter's own with, each set up as its own documentation recommends."""
