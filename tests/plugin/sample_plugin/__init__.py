"""A package with a target and a recipe of its own, which exporter finds by their entry points."""
