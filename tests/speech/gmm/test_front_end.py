"""Features as an HMM-GMM hears them."""

from __future__ import annotations

import numpy as np
import pytest

from roundelay.errors import DataError
from roundelay.speech.gmm.front_end import FrontEnd


def test_log_mel_input_is_turned_into_cepstra() -> None:
    """An orthonormal DCT of 6 energies to 6 cepstra keeps the energy of each frame."""
    x = np.random.default_rng(0).standard_normal((9, 6)).astype(np.float32)
    cepstra = FrontEnd(input="fbank", num_cepstra=6).cepstra(x)
    assert np.allclose((cepstra**2).sum(1), (x**2).sum(1), rtol=1e-4)
    assert np.allclose(cepstra[:, 0], x.sum(1) / np.sqrt(6), atol=1e-4)
    assert FrontEnd(input="fbank", num_cepstra=4)(x, None).shape == (9, 12)
    assert np.array_equal(FrontEnd(input="final")(x, None), x)
    with pytest.raises(DataError, match="7 cepstra cannot be made of 6"):
        FrontEnd(input="fbank", num_cepstra=7).cepstra(x)
