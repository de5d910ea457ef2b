"""``toptheta benchmark`` and ``toptheta benchmark-generate``."""
