"""A small convolutional classifier of images of digits."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional


class DigitModel(nn.Module):
    """Three convolutions and a linear layer.

    The first convolution sums over one channel, so a block there is one value: legal, and 1 % of the weights.
    """

    def __init__(self, channels: int, side: int = 8) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, channels, 3, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv3 = nn.Conv2d(channels, 2 * channels, 3, padding=1)
        self.head = nn.Linear(2 * channels * (side // 4) ** 2, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits ``(n, 10)`` of images ``(n, 1, side, side)``."""
        x = functional.relu(self.conv1(images))
        x = functional.max_pool2d(functional.relu(self.conv2(x)), 2)
        x = functional.max_pool2d(functional.relu(self.conv3(x)), 2)
        logits: Tensor = self.head(x.flatten(1))
        return logits
