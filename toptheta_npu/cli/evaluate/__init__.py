"""``toptheta evaluate``, ``toptheta plot`` and ``toptheta demo``."""
