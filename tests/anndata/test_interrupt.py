"""Ctrl-C waits until a result is written."""

import os
import signal

import pytest

from scvcc._anndata.representation import uninterrupted


def test_an_interrupt_waits_until_the_block_is_done():
    done = []
    with pytest.raises(KeyboardInterrupt):
        with uninterrupted():
            with uninterrupted():
                os.kill(os.getpid(), signal.SIGINT)
                done.append("inner")
            done.append("outer")
    assert done == ["inner", "outer"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_error_in_the_block_is_raised():
    with pytest.raises(ValueError, match="mine"), uninterrupted():
        raise ValueError("mine")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
