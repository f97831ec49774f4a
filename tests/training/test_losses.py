import numpy as np
import pytest
import torch

from scvcc._training import losses as _losses

LOSSES_OF_DISTANCE = [
    lambda d: _losses.boundary_loss(d, torch.full_like(d, 1 / d.numel()), repulsion=0.1),
    lambda d: _losses.boundary_loss(d, torch.full_like(d, 1 / d.numel())),
    lambda d: _losses.contraction_loss(d, torch.full_like(d, 1 / d.numel())),
    _losses.expansion_loss,
]


@pytest.fixture
def distances():
    return torch.from_numpy(np.random.default_rng(0).uniform(0.05, 4, 30))


@pytest.fixture
def share():
    share = torch.from_numpy(np.random.default_rng(1).uniform(size=30))
    return share / share.sum()


def test_the_complement_of_the_similarity(distances):
    d = distances.numpy()
    np.testing.assert_allclose(_losses.log_dissimilarity(distances), np.log(1 - np.exp(-d)), rtol=1e-12)


@pytest.mark.parametrize("repulsion", [1.0, 0.1, 0.0])
def test_boundary_loss_equals_the_formula(distances, share, repulsion):
    expected = 0.0
    for d, s in zip(distances.tolist(), share.tolist(), strict=True):
        similarity = np.exp(-d)
        expected += s * -(np.log(similarity) + repulsion * np.log(1 - similarity))
    assert _losses.boundary_loss(distances, share, repulsion=repulsion).item() == pytest.approx(expected)


@pytest.mark.parametrize("repulsion", [1.0, 0.1])
def test_boundary_loss_rests_at_its_equilibrium(repulsion):
    d = torch.linspace(0.01, 3, 3000, dtype=torch.float64)
    values = torch.stack([_losses.boundary_loss(x[None], torch.ones(1), repulsion=repulsion) for x in d])
    assert d[values.argmin()].item() == pytest.approx(np.log(1 + repulsion), abs=2e-3)


def test_contraction_and_expansion_equal_the_formulas(distances, share):
    similarity = np.exp(-distances.numpy())
    assert _losses.contraction_loss(distances, share).item() == pytest.approx(
        -(share.numpy() * np.log(similarity)).sum()
    )
    assert _losses.expansion_loss(distances).item() == pytest.approx(-np.log(1 - similarity).mean())


def slow_assignment(H, C):
    Q = np.array([[1 / (1 + sum((h - c) ** 2)) for c in C] for h in H])
    return Q / Q.sum(axis=1, keepdims=True)


def test_clustering_loss_equals_the_formulas():
    rng = np.random.default_rng(0)
    H, C = rng.normal(size=(20, 3)), rng.normal(size=(4, 3))
    Q = slow_assignment(H, C)
    P = Q**2 / Q.sum(axis=0)
    P /= P.sum(axis=1, keepdims=True)
    found = _losses.soft_assignment(torch.from_numpy(H), torch.from_numpy(C))
    np.testing.assert_allclose(found, Q)
    target = _losses.target_distribution(found, found.sum(dim=0))
    np.testing.assert_allclose(target, P)
    expected = np.mean([sum(p * np.log(p / q)) for p, q in zip(P, Q, strict=True)])
    assert _losses.clustering_loss(target, found).item() == pytest.approx(expected)


def test_target_frequencies_are_those_of_all_points():
    Q = torch.from_numpy(slow_assignment(np.random.default_rng(0).normal(size=(50, 2)), np.eye(2) * 2))
    frequencies = Q.sum(dim=0)
    whole = _losses.target_distribution(Q, frequencies)
    np.testing.assert_allclose(_losses.target_distribution(Q[:5], frequencies), whole[:5])
    assert not np.allclose(_losses.target_distribution(Q[:5], Q[:5].sum(dim=0)), whole[:5])


@pytest.mark.parametrize("loss", LOSSES_OF_DISTANCE)
def test_gradients_of_pair_losses(loss):
    rng = np.random.default_rng(0)
    a, b = (torch.from_numpy(rng.normal(size=(6, 3))).requires_grad_() for _ in range(2))
    assert torch.autograd.gradcheck(lambda a, b: loss(_losses.pair_distance(a, b)), (a, b))


def test_gradient_of_the_clustering_loss():
    rng = np.random.default_rng(0)
    H, C = torch.from_numpy(rng.normal(size=(6, 3))), torch.from_numpy(rng.normal(size=(2, 3)))
    P = torch.from_numpy(rng.dirichlet([1, 1], size=6))
    H.requires_grad_(), C.requires_grad_()
    assert torch.autograd.gradcheck(lambda H, C: _losses.clustering_loss(P, _losses.soft_assignment(H, C)), (H, C))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("loss", LOSSES_OF_DISTANCE)
@pytest.mark.parametrize("gap", [0.0, 1e-30, 1e-8, 50.0, 1e4])
def test_pair_losses_are_safe_at_both_ends(loss, gap, dtype):
    a = torch.zeros(3, 2, dtype=dtype, requires_grad=True)
    b = torch.full((3, 2), gap, dtype=dtype)
    value = loss(_losses.pair_distance(a, b))
    value.backward()
    assert torch.isfinite(value)
    assert torch.isfinite(a.grad).all()


@pytest.mark.parametrize("gap", [0.0, 1e-20, 1e10, 1e18])
def test_clustering_loss_is_safe_at_both_ends(gap):
    H = torch.full((3, 2), gap, requires_grad=True)
    C = torch.tensor([[0.0, 0.0], [gap, gap], [1.0, 0.0]])
    Q = _losses.soft_assignment(H, C)
    value = _losses.clustering_loss(_losses.target_distribution(Q, Q.sum(dim=0)).detach(), Q)
    value.backward()
    assert torch.isfinite(value)
    assert torch.isfinite(H.grad).all()


def test_total_is_the_weighted_sum_with_beta():
    terms = {"boundary": 1.0, "contraction": 2.0, "expansion": 4.0, "clustering": 8.0, "anchor": 16.0}
    weights = {"boundary": 0.1, "contraction": 1.0, "expansion": 0.2, "clustering": 0.5}
    assert _losses.weighted_total(terms, weights, beta=0.25) == pytest.approx(0.1 + 2 + 0.8 + 0.25 * 0.5 * 8 + 16)


def test_losses_of_drawn_pairs_are_means():
    rng = np.random.default_rng(0)
    H, pairs = rng.normal(size=(60, 2)), rng.permutation(60).reshape(3, 2, 10)
    d = [np.linalg.norm(H[head] - H[tail], axis=1) for head, tail in pairs]
    terms = _losses.drawn_losses(torch.from_numpy(H), pairs, repulsion=0.1)
    assert terms["boundary"].item() == pytest.approx(np.mean(d[0] - 0.1 * np.log(1 - np.exp(-d[0]))), rel=1e-4)
    assert terms["contraction"].item() == pytest.approx(d[1].mean(), rel=1e-4)
    assert terms["expansion"].item() == pytest.approx(-np.log(1 - np.exp(-d[2])).mean(), rel=1e-4)
    none = pairs[0][:, :0]
    assert _losses.drawn_losses(torch.from_numpy(H), [*pairs[:2], none], repulsion=0.1)["expansion"].item() == 0


def test_self_training_holds_the_target_fixed():
    rng = np.random.default_rng(0)
    H, C = torch.from_numpy(rng.normal(size=(6, 3))).requires_grad_(), torch.from_numpy(rng.normal(size=(2, 3)))
    Q = _losses.soft_assignment(H, C)
    P = _losses.target_distribution(Q, Q.sum(dim=0)).detach()
    expected = torch.autograd.grad(_losses.clustering_loss(P, Q), H)[0]
    found = torch.autograd.grad(_losses.self_training_loss(H, C), H)[0]
    np.testing.assert_allclose(found, expected)
    frequencies = torch.tensor([1.0, 9.0], dtype=torch.float64)
    P = _losses.target_distribution(Q, frequencies).detach()
    assert _losses.self_training_loss(H, C, frequencies).item() == pytest.approx(_losses.clustering_loss(P, Q).item())
