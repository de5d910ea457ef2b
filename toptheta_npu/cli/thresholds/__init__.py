"""``toptheta inspect``: shows a file of thresholds."""
