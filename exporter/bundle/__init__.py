"""The output directory of a run, with hashes, a bill of materials, provenance and signatures. Never imports torch."""
