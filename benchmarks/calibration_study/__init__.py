"""What calibration decides, on the embedded model: the tables and figures of docs/calibration.md."""
