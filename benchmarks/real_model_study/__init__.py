"""What Top-θ does to a real model."""
