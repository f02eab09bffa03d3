"""The LSTM built of Linear layers is torch's."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from roundelay.models import build_model
from roundelay.models.linear_lstm import LinearLSTM
from roundelay.optim.natural_gradient import precondition


def copy_weights(theirs: nn.LSTM, ours: LinearLSTM) -> None:
    """Give ``ours`` the weights of an LSTM of the same settings."""
    state, index = theirs.state_dict(), 0
    for layer in range(ours.layers):
        for suffix in ("", "_reverse")[: ours.directions]:
            end = f"_l{layer}{suffix}"
            for name, short in (("input", "ih"), ("recurrent", "hh")):
                weights = {kind: state[f"{kind}_{short}{end}"] for kind in ("weight", "bias")}
                getattr(ours, name)[index].load_state_dict(weights)
            if len(ours.projection):
                ours.projection[index].load_state_dict({"weight": state[f"weight_hr{end}"]})
            index += 1


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("projection", [0, 5])
@pytest.mark.parametrize("lengths", [None, [11, 5, 8, 1]])
def test_is_the_lstm_of_torch(bidirectional: bool, projection: int, lengths: list[int] | None) -> None:
    torch.manual_seed(0)
    theirs = nn.LSTM(7, 9, 2, batch_first=True, bidirectional=bidirectional, proj_size=projection)
    ours = LinearLSTM(7, 9, 2, bidirectional=bidirectional, projection=projection)
    copy_weights(theirs, ours)
    x = torch.randn(4, 11, 7)
    one, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    if lengths is None:
        wanted, got = theirs(one)[0], ours(other)[0]
    else:
        packed = pack_padded_sequence(one, torch.tensor(lengths), batch_first=True, enforce_sorted=False)
        wanted = pad_packed_sequence(theirs(packed)[0], batch_first=True, total_length=11)[0]
        got = ours(other, torch.tensor(lengths))[0]
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-5)
    wanted.sin().sum().backward()
    got.sin().sum().backward()
    torch.testing.assert_close(other.grad, one.grad, rtol=0, atol=1e-5)
    torch.testing.assert_close(ours.recurrent[0].weight.grad, theirs.weight_hh_l0.grad, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["lstm", "cldnn"])
def test_models_can_be_built_of_it_and_are_preconditioned_whole(name: str) -> None:
    torch.manual_seed(0)
    model = build_model({"name": name, "preset": "tiny", "linear": True}, 24, 7)
    natural = precondition(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert any("recurrent" in layer for layer in natural.layers)
    logits = model(torch.randn(3, model.left + 9 + model.right, 24), torch.tensor([9, 4, 7]))
    assert logits.shape == (3, 9, 7)
    logits.square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    recurrent = next(layer for each, layer in natural.layers.items() if "recurrent.0" in each)
    assert recurrent.sides["in"].updates == 1  # for all frames together
