"""Clusters of laid-out points: candidate partitions, numbers of clusters, assignment, novelty."""
