"""Small modules drawn by hypothesis, and whole runs of the pipeline on them in one process."""
