import numpy as np
import pytest
import scipy.sparse as sp
import torch

from scvcc._training import encoder as _encoder
from scvcc._training import graph as _graph
from scvcc._training.encoder import Encoder, Rows, early_width, encode, encode_with_features

CPU = torch.device("cpu")


def make(n_features=6, hidden=(8, 4), latent_dim=2, seed=0):
    return Encoder(n_features, hidden, latent_dim, torch.Generator().manual_seed(seed))


def graph_of(X):
    return _graph.latent_graph(_graph.neighbor_distances(X, 5))


@pytest.fixture
def X():
    return np.random.default_rng(0).normal(3, 2, size=(1300, 6)).astype(np.float32)


def test_forward_is_an_mlp_on_standardized_input(X):
    encoder = make()
    encoder.standardize(X, graph_of(X))
    layers = [m for m in encoder.modules() if isinstance(m, torch.nn.Linear)]
    assert [(m.in_features, m.out_features) for m in layers] == [(6, 8), (8, 4), (4, 2)]
    centerd = X - X.mean(axis=0)
    h = centerd / np.sqrt((centerd**2).mean())
    for i, layer in enumerate(layers):
        h = h @ layer.weight.detach().numpy().T + layer.bias.detach().numpy()
        h = h if i == 2 else np.maximum(h, 0)
    np.testing.assert_allclose(encode(encoder, Rows(X, CPU)), h, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("make_sparse", [sp.csr_matrix, sp.csr_array, sp.csc_matrix])
def test_sparse_moments_and_rows_equal_dense(X, make_sparse):
    X = np.where(X > 3, X, 0)
    dense, sparse = make(), make()
    dense.standardize(X, graph_of(X))
    sparse.standardize(sp.csr_matrix(make_sparse(X)), graph_of(X))
    np.testing.assert_allclose(sparse.center, dense.center, rtol=1e-6)
    assert float(sparse.scale) == pytest.approx(float(dense.scale))
    index = torch.tensor([3, 700, 3])
    np.testing.assert_array_equal(Rows(make_sparse(X), CPU)[index], X[[3, 700, 3]])
    np.testing.assert_array_equal(encode(dense, Rows(X, CPU)), encode(dense, Rows(make_sparse(X), CPU)))


def test_moments_of_large_values_keep_their_precision():
    X = np.random.default_rng(0).normal(1e4, 1, size=(5000, 3)).astype(np.float32)
    mean, spread = _encoder._moments(X)
    np.testing.assert_allclose(mean, X.astype(np.float64).mean(axis=0), rtol=1e-9)
    assert spread == pytest.approx(1.0, rel=0.05)


def test_a_constant_feature_of_large_values_does_not_hide_the_spread_of_the_others(X):
    wide = np.column_stack([X, np.full(len(X), 1.7e9)])
    mean, spread = _encoder._moments(wide)
    np.testing.assert_allclose(mean, wide.mean(axis=0), rtol=1e-12)
    assert spread == pytest.approx(np.sqrt(np.square(wide - wide.mean(axis=0)).mean()), rel=1e-9)


def test_constant_input_does_not_divide_by_zero():
    X = np.ones((20, 6), np.float32)
    encoder = make()
    encoder.standardize(X, graph_of(X))
    assert torch.isfinite(encode(encoder, Rows(X, CPU))).all()


def test_a_row_is_placed_alike_alone_and_in_company(X):
    encoder = make(hidden=(64, 64))
    encoder.standardize(X, graph_of(X))
    whole = encode(encoder, Rows(X, CPU))
    for rows in ([0], [5, 1299], list(range(700, 720))):
        np.testing.assert_array_equal(encode(encoder, Rows(X[rows], CPU)), whole[rows])


def test_weights_come_from_the_generator_and_leave_the_global_state(X):
    before = torch.random.get_rng_state()
    a, b, c = make(seed=1), make(seed=1), make(seed=2)
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.equal(a.hidden[0].weight, b.hidden[0].weight)
    assert not torch.equal(a.hidden[0].weight, c.hidden[0].weight)


@pytest.mark.filterwarnings("error")
def test_read_only_and_fortran_rows(X):
    X.setflags(write=False)
    np.testing.assert_array_equal(Rows(X, CPU)[torch.arange(2)], X[:2])
    np.testing.assert_array_equal(Rows(np.asfortranarray(X), CPU)[torch.arange(2)], X[:2])


@pytest.mark.parametrize("as_input", [np.asarray, sp.csr_matrix])
@pytest.mark.parametrize("apart", [0, 300])
def test_scale_is_the_spread_or_what_neighbors_allow(as_input, apart):
    rng = np.random.default_rng(0)
    X = (rng.normal(size=(400, 6)) + apart * np.repeat([0, 1], 200)[:, None]).astype(np.float32)
    encoder, graph = make(), graph_of(X)
    encoder.standardize(as_input(X), graph)
    edges = graph.tocoo()
    typical = np.median(np.sqrt(np.square(X[edges.row] - X[edges.col]).mean(axis=1)))
    spread = np.sqrt(np.square(X - X.mean(axis=0)).mean())
    expected = typical / _encoder.INPUT_NOISE if apart else spread
    assert float(encoder.scale) == pytest.approx(expected, rel=0.1)
    assert (spread > 20 * expected) == (apart > 0)


def test_neighbors_that_coincide_do_not_set_the_scale():
    X = np.repeat([[0.0] * 6, [1.0] * 6], 20, axis=0).astype(np.float32)
    encoder = make()
    encoder.standardize(X, graph_of(X))
    assert float(encoder.scale) == pytest.approx(0.5)


@pytest.mark.parametrize("hidden", [(), (4,), (6, 4), (6, 4, 5)])
def test_features_are_the_second_hidden_layer_and_embeddings_those_of_encode(X, hidden):
    encoder, rows = make(hidden=hidden), Rows(X, CPU)
    encoder.standardize(X, graph_of(X))
    onto = np.random.default_rng(0).normal(size=(early_width(encoder.sizes), 3)).astype(np.float32)
    H, Z = encode_with_features(encoder, rows, onto)
    np.testing.assert_array_equal(H, encode(encoder, rows))
    with torch.no_grad():
        expected = encoder.hidden[:4]((torch.from_numpy(X) - encoder.center) / encoder.scale).numpy() @ onto
    np.testing.assert_allclose(Z, expected, rtol=1e-4, atol=1e-5)
    chosen = np.array([3, 700, 1299])
    for whole, some in zip((H, Z), encode_with_features(encoder, Rows(X[chosen], CPU), onto), strict=True):
        np.testing.assert_allclose(some, whole[chosen], rtol=1e-5)
