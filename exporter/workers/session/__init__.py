"""Sessions: processes that hold one loaded artifact and answer `check` and `time N` (docs/formats.md)."""
