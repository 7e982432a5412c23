"""Broadcast copies on a device, compared with eager PyTorch."""

from __future__ import annotations

import torch

from tests.torch.exported import compiled


def test_scalar_tensor_is_written_to_a_column():
    def shifted(x):
        result = torch.zeros_like(x)
        result[:, 1:] = x[:, :-1]
        result[:, 0] = torch.tensor(7)
        return result

    values = torch.arange(12.0).view(3, 4)
    on_device, sessions = compiled(shifted)
    torch.testing.assert_close(on_device(values), shifted(values))
    assert len(sessions) == 1
