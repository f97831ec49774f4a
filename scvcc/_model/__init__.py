"""The estimator and what belongs to it: rows in blocks, model files."""
