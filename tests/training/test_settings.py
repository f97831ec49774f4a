import pytest

from scvcc._training.settings import LOSS_WEIGHTS, beta, resolve_weights


def test_weights_by_name():
    assert resolve_weights("compact", None) == LOSS_WEIGHTS["compact"]
    assert resolve_weights("paper", {"expansion": 0})["expansion"] == 0
    assert set(resolve_weights("paper", None).values()) == {1.0}
    with pytest.raises(ValueError, match="no loss 'expand'.*expansion"):
        resolve_weights("compact", {"expand": 1})


def test_given_weights_do_not_change_the_defaults():
    resolve_weights("compact", {"boundary": 7})
    assert resolve_weights("compact", None)["boundary"] == 0.1


def test_beta_is_the_papers_gamma_times_the_epoch():
    assert [beta(epoch) for epoch in (0, 1, 20)] == pytest.approx([0, 0.01, 0.2])
