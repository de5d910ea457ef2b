"""``toptheta calibrate``."""
