"""The ways to attend that are compared: what they are, their names, and how some are matched to others."""
