"""The directory that a run leaves, and what proves it: hashes, bill of materials, provenance, signatures. No torch."""
