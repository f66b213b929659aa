"""A small recurrent language model of bytes: an embedding, an LSTM and the logits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fewbits.train.tasks.bytes_model import BYTES


@dataclass(frozen=True)
class LSTMShape:
    """The sizes of a recurrent byte model."""

    embedding: int = 64  # numbers per byte
    hidden: int = 192
    layers: int = 1


class ByteLSTM(nn.Module):
    """Predict each next byte from a state that starts at zero with each window."""

    def __init__(self, shape: LSTMShape) -> None:
        super().__init__()
        self.embedding = nn.Embedding(BYTES, shape.embedding)
        self.recurrence = nn.LSTM(shape.embedding, shape.hidden, shape.layers, batch_first=True)
        self.head = nn.Linear(shape.hidden, BYTES)
        nn.init.normal_(self.head.weight, std=0.02)  # the first loss is that of a uniform guess
        with torch.no_grad():
            # Forget gates begin open (Jozefowicz et al., Recurrent Network Architectures, 2015, section 2.2).
            for name, bias in self.recurrence.named_parameters():
                if name.startswith("bias_ih"):
                    bias[shape.hidden : 2 * shape.hidden] = 1.0

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits ``(batch, time, 256)`` of the byte after each of ``tokens``, ``(batch, time)``."""
        outputs, _ = self.recurrence(self.embedding(tokens))
        logits: Tensor = self.head(outputs)
        return logits
