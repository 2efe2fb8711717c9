"""A release: what a TOML file asks for, made step by step, kept by content hash, held against its gates.

`file` reads, `plan` makes the steps, `state` knows which are finished, `executor` runs the others, `gates` judges, and
`formats` and `junit` show. A step is plain data, so that an executor may run it elsewhere.
"""
