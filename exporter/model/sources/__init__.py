"""Sources: recipes generated from a library's own knowledge of its models.

Each source is a module of the same name: `hf.py` handles `hf:ID`. Each has `recipe(name, source) -> Recipe` and a
`summary`, one line for `exporter models`. None imports its library until `recipe` runs, in a child process.
"""
