"""What a call leaves behind for the next: where a model keeps it, and how artifacts carry it."""
