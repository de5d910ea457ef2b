"""``toptheta convert``: thresholds from form to form, and models out of GGUF files."""
