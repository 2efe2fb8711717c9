"""What may be changed so that torch.export accepts a model: one rule a file. Rules read source text and load no torch.

A rule proposes; it does not have to be right. Each proposal is tried, and shown only if it was proven.
"""
