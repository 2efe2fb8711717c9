"""Recipes that come with exporter, installed as `exporter_models`. Each imports only torch and its own library."""
