"""State that one call leaves for the next: where a model keeps it, and how artifacts carry it."""
