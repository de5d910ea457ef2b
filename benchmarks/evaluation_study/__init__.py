"""The study behind docs/reproduction.md."""
