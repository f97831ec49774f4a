import heapq

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.special import softmax
from scipy.stats import multivariate_normal

from scvcc._clusters.evidence import shrunk_covariance
from scvcc._clusters.tree import (
    LeafRule,
    Tree,
    assign_leaves,
    calibrated,
    find_leaves,
    fit_leaf_rule,
    grow_tree,
    leaf_probabilities,
)

# clusters 0 (leaves 0, 1, 2), 1 (leaf 3) and 2 (leaves 4, 5); of the fitted ones, 0 and 2 join first
TREE = Tree(
    np.array([0, 0, 0, 1, 2, 2]),
    np.array([5, 2, 4, 8, 6, 1]),
    np.array([[0, 1], [4, 5], [0, 2], [0, 4], [0, 3]]),
    np.array([0.5, 0.3, 0.2, 0.1, 0.0]),
)


@pytest.mark.parametrize(
    ("n_clusters", "cut", "names"),
    [
        (1, [0, 0, 0, 0, 0, 0], ["0+1+2"]),
        (2, [0, 0, 0, 1, 0, 0], ["0+2", "1"]),
        (3, [0, 0, 0, 1, 2, 2], ["0", "1", "2"]),
        (4, [0, 0, 1, 2, 3, 3], ["0,0", "0,1", "1", "2"]),
        (5, [0, 0, 1, 2, 3, 4], ["0,0", "0,1", "1", "2,0", "2,1"]),
        (6, [0, 1, 2, 3, 4, 5], ["0,0,0", "0,0,1", "0,1", "1", "2,0", "2,1"]),
    ],
)
def test_cuts_of_a_small_tree(n_clusters, cut, names):
    assert TREE.cut(n_clusters).tolist() == cut
    assert TREE.names(n_clusters) == names


def test_names_begin_with_those_of_the_clusters():
    assert TREE.names(4, ["B", "T", "NK"]) == ["B,0", "B,1", "T", "NK"]
    assert TREE.names(2, ["B", "T", "NK"]) == ["B+NK", "T"]


@pytest.mark.parametrize(
    ("group", "names"),
    [
        ([0, 1, 2, 3, 4, 5], ["0,0,0", "0,0,1", "0,1", "1", "2,0", "2,1"]),
        ([0, 0, 2, 3, 4, 4], ["0,0", "0,0", "0,1", "1", "2", "2"]),
        ([0, 0, 0, 3, 4, 5], ["0", "0", "0", "1", "2,0", "2,1"]),
        ([0, 1, 0, 3, 4, 5], ["0,0,0+0,1", "0,0,1", "0,0,0+0,1", "1", "2,0", "2,1"]),  # not a node of the tree
        ([0, 1, 1, 1, 1, 5], ["0,0,0", *["0,0,1+0,1+1+2,0"] * 4, "2,1"]),
        ([0, 0, 0, 0, 4, 4], ["0+1", "0+1", "0+1", "0+1", "2", "2"]),
        ([0, 0, 2, 3, 2, 2], ["0,0", "0,0", "0,1+2", "1", "0,1+2", "0,1+2"]),
    ],
)
def test_parts_that_make_up_a_node_go_by_its_name(group, names):
    assert TREE.joined(TREE.names(6), np.array(group)) == names


def test_names_of_coarse_clusters_that_are_joined():
    assert TREE.joined(["B", "T", "NK"], np.array([0, 0, 2])) == ["B+T", "B+T", "NK"]
    assert TREE.joined(["B+NK", "T"], np.array([0, 1])) == ["B+NK", "T"]


def test_sides_are_the_leaves_of_both_nodes():
    sides = [(a.tolist(), b.tolist()) for a, b in TREE.sides()]
    assert sides[2:] == [([0, 1], [2]), ([0, 1, 2], [4, 5]), ([0, 1, 2, 4, 5], [3])]


@pytest.fixture
def grown():
    """A tree over 12 random leaves in 3 clusters, and the graph it was grown on."""
    rng = np.random.default_rng(0)
    leaf = rng.permutation(np.repeat(np.arange(12), 10))
    A = np.triu(rng.random((120, 120)) < 0.15, 1) * rng.random((120, 120))
    graph = sp.csr_matrix((A + A.T).astype(np.float32))
    labels = np.array([0, 1, 2, 0, 1, 2, 0, 0, 0, 1, 1, 0])[leaf]
    tree, order = grow_tree(graph, leaf, labels)
    return tree, np.argsort(order)[leaf], labels, graph


def slow_link(graph, a, b):
    A = graph.toarray().astype(float)
    return A[np.ix_(a, b)].sum() / np.sqrt(A[a].sum() * A[b].sum())


def test_cuts_are_nested_and_pass_through_the_partition(grown):
    tree, leaf, labels, _ = grown
    np.testing.assert_array_equal(tree.cut(3)[leaf], labels)
    np.testing.assert_array_equal(tree.size, np.bincount(leaf))
    for n in range(1, 13):
        assert set(tree.cut(n)) == set(range(n))
        if n > 1:  # every cluster lies in one of the coarser cut
            assert len({*zip(tree.cut(n), tree.cut(n - 1), strict=True)}) == n


def test_the_split_with_the_weakest_link_comes_first(grown):
    tree, *_ = grown
    # slow: from the clusters down, always the available split with the lowest link
    splits = [(set(a) | set(b), link) for (a, b), link in zip(tree.sides(), tree.link, strict=True)][:9]
    heap = [(link, sorted(node)) for node, link in splits if not any(node < other for other, _ in splits)]
    heapq.heapify(heap)
    found = []
    while heap:
        link, node = heapq.heappop(heap)
        found.append(node)
        inside = [(weight, part) for part, weight in splits if part < set(node)]
        for weight, part in inside:
            if not any(part < other for _, other in inside):
                heapq.heappush(heap, (weight, sorted(part)))
    assert found == [sorted(node) for node, _ in splits[::-1]]


def test_links_equal_their_definition(grown):
    tree, leaf, _, graph = grown
    for (a, b), link in list(zip(tree.sides(), tree.link, strict=True))[9:]:  # among clusters, volumes are whole
        rows = np.flatnonzero(np.isin(leaf, a)), np.flatnonzero(np.isin(leaf, b))
        assert link == pytest.approx(slow_link(graph, *rows), rel=1e-5)


def test_the_larger_part_comes_first(grown):
    tree, *_ = grown
    for a, b in list(tree.sides())[:9]:
        assert tree.size[a].sum() >= tree.size[b].sum()


def test_leaves_lie_in_clusters_and_find_a_hidden_group():
    rng = np.random.default_rng(0)
    H = np.concatenate([rng.normal(0, 0.2, (80, 2)), rng.normal(3, 0.2, (15, 2)), rng.normal(9, 0.2, (60, 2))])
    group, labels = np.repeat([0, 1, 2], [80, 15, 60]), np.repeat([0, 0, 1], [80, 15, 60])
    distance = np.linalg.norm(H[:, None] - H[None], axis=2)
    graph = sp.csr_matrix(np.where((distance < 0.5) & (distance > 0), 1.0, 0.0).astype(np.float32))
    leaf = find_leaves(H, graph, labels, rng, 10)
    assert np.bincount(leaf).min() >= 10
    assert len({*zip(leaf, group, strict=True)}) == leaf.max() + 1 > 4
    tree, order = grow_tree(graph, leaf, labels)
    np.testing.assert_array_equal(tree.cut(3)[np.argsort(order)[leaf]], group)


def test_a_cluster_below_the_smallest_size_is_one_leaf():
    H, labels = np.arange(24.0)[:, None], np.repeat([0, 1], [20, 4])
    graph = sp.csr_matrix(np.eye(24, k=1) + np.eye(24, k=-1))
    leaf = find_leaves(H, graph, labels, np.random.default_rng(0), 5)
    assert len(set(leaf[20:])) == 1
    assert len(set(leaf[:20])) > 1


# ------------------------------------------------------------------------------------------- the leaf of a point


@pytest.fixture
def layer():
    rng = np.random.default_rng(0)
    leaf = np.sort(rng.permutation(np.repeat(np.arange(4), [60, 30, 20, 90])))
    mixing = rng.normal(size=(6, 6))
    return (rng.normal(size=(200, 6)) @ mixing + 2 * rng.normal(size=(4, 6))[leaf]).astype(np.float32), leaf


def test_rule_is_the_log_density_of_gaussians_with_a_common_covariance(layer):
    Z, leaf = layer
    rule = fit_leaf_rule(Z, leaf, np.random.default_rng(0))
    scores = Z @ rule.weights + rule.offset
    means = np.stack([Z[leaf == k].mean(axis=0) for k in range(4)])
    covariance = shrunk_covariance((Z - means[leaf]).astype(float))
    slow = np.stack(
        [multivariate_normal(means[k], covariance).logpdf(Z) + np.log((leaf == k).sum()) for k in range(4)], axis=1
    )
    np.testing.assert_allclose(scores - scores[:, :1], slow - slow[:, :1], atol=2e-3)


def test_leaf_is_the_best_of_the_cluster():
    scores = np.array([[9.0, 1, 2, 5], [0, 3, 1, 2]])
    cluster = np.array([0, 1, 1, 2])
    assert assign_leaves(scores, np.array([1, 1]), cluster).tolist() == [2, 1]
    assert assign_leaves(scores, np.array([2, 0]), cluster).tolist() == [3, 0]


def test_probabilities_of_leaves_share_out_those_of_clusters():
    rng = np.random.default_rng(0)
    scores, P, cluster = rng.normal(size=(5, 6)), softmax(rng.normal(size=(5, 3)), axis=1), np.array([0, 0, 1, 2, 2, 2])
    found = leaf_probabilities(scores.astype(np.float32), P, cluster)
    for i in range(5):
        for k in range(3):
            expected = P[i, k] * softmax(scores[i, cluster == k].astype(np.float32).astype(float))
            np.testing.assert_allclose(found[i, cluster == k], expected, rtol=1e-12)


def test_calibration_recovers_how_often_neighbors_agree():
    rng = np.random.default_rng(0)
    n, cluster = 4000, np.array([0, 0, 0, 1, 1])
    scores = 6 * rng.normal(size=(n, 5))
    own = rng.integers(2, size=n)
    leaf = assign_leaves(scores, own, cluster)
    p = np.where(cluster == own[:, None], np.exp(0.3 * scores), 0)
    drawn = np.array([rng.choice(5, p=row / row.sum()) for row in p])
    partner = [rng.choice(np.flatnonzero(leaf == k)) for k in drawn]  # a neighbor in the leaf that was drawn
    edges = np.arange(n), np.array(partner), np.ones(n)
    rule = LeafRule(np.ones((2, 5), np.float32), np.ones(5, np.float32))
    found = calibrated(rule, scores, leaf, cluster, edges)
    np.testing.assert_allclose(found.weights, 0.3, atol=0.02)
    assert calibrated(rule, scores, leaf, np.arange(5), edges) is rule  # a leaf for each cluster: nothing to share out
