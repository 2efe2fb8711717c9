"""Releases: export the models of a TOML file step by step, keep bundles by content hash and check them against gates.

`file` reads the file, `plan` makes the steps, `state` records which are finished, `executor` and `cluster` run the
others, `gates` checks the results, and `formats` and `junit` render them. A step is plain data, so that an executor can
run it elsewhere.
"""
