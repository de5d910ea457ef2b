"""``toptheta evaluate``, its demonstration and its figures."""
