"""Networks on sequences, graphs and patches for `pytorch.py`, written by hand."""

from __future__ import annotations

import torch
from torch import nn


class Recurrent(nn.Module):
    """An LSTM or a GRU over embeddings."""

    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.embedding, self.core, self.head = (
            nn.Embedding(100, 32),
            kind(32, 48, 1, batch_first=True),
            nn.Linear(48, 5),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Tokens [N, L] to scores [N, 5]."""
        return self.head(self.core(self.embedding(x))[0][:, -1])


class GraphNet(nn.Module):
    """Messages along edges, gathered and added up."""

    def __init__(self) -> None:
        super().__init__()
        self.message, self.update = nn.Linear(16, 32), nn.Linear(48, 16)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        """Nodes [N, 16] and edges [2, E] to nodes [N, 16]."""
        sent = torch.relu(self.message(x))[edges[0]]
        gathered = torch.zeros(x.shape[0], 32).index_add(0, edges[1], sent)
        return self.update(torch.cat([x, gathered], 1))


class Mixer(nn.Module):
    """One block of an MLP mixer over patches."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.norm = nn.Conv2d(3, 32, 8, 8), nn.LayerNorm(32)
        self.across, self.along = nn.Linear(16, 16), nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Pictures [N, 3, 32, 32] to features [N, 32]."""
        y = self.patches(x).flatten(2).transpose(1, 2)
        y = y + self.across(self.norm(y).transpose(1, 2)).transpose(1, 2)
        return (y + self.along(self.norm(y))).mean(1)


class Attending(nn.Module):
    """PyTorch's own encoder layer behind group normalization."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.layer = nn.GroupNorm(4, 32), nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Rows [N, L, 32], and as many back."""
        return self.layer(self.norm(x.transpose(1, 2)).transpose(1, 2))
