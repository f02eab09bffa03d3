"""Windows of frames that a DNN reads."""

from __future__ import annotations

import torch

from tiny_models import built


def test_dnn_reads_a_spliced_window_oldest_frame_first() -> None:
    model = built("dnn", inputs=3, batch_norm=False).eval()
    x = torch.randn(1, 9, 3)
    whole = model(x)
    for frame in range(5):
        spliced = x[:, frame : frame + 5].reshape(1, 15)
        torch.testing.assert_close(whole[:, frame], model.output(model.hidden(spliced)))
