"""Small modules drawn by hypothesis, and whole pipeline runs on them in one process."""
