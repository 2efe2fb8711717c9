"""Change a copy of the model's source until torch.export accepts it, and prove each change. The parent loads no torch.

`search` is the parent's side. `rules` propose changes from the source alone; `child` loads, exports and compares in
processes of their own. What proves a change (`branches`, `recording`, `comparing`) knows nothing of the rules.
"""
