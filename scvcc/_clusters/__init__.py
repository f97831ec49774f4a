"""Clusters of laid-out points on a graph: candidates and choice, numbers of clusters, assignment, novelty."""
