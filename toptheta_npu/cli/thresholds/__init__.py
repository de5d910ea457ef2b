"""Commands for files of thresholds."""
