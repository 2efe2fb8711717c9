"""Run exporter as `python -m exporter`."""

from exporter.cli import main

if __name__ == "__main__":
    main()
