"""Training: from a matrix and a neighbor graph to an encoder with cluster centers."""
