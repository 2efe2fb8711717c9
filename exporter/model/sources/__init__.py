"""Sources: recipes that nobody had to write, made from a library's own knowledge of its models.

One module a source, found by its name: `hf:ID` is answered by `hf.py`. Each has `recipe(name, source) -> Recipe` and a
`summary`, one line for `exporter models`. None imports its library until `recipe` runs, in a child.
"""
