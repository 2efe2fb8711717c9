"""The order of steps, in the parent: export, check, bench, rebuild, compare. No torch."""
