"""The recipes that exporter ships, installed as `exporter_models`. Each imports only torch and its own library."""
