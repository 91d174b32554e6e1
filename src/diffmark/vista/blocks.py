"""What Vista's autoencoder is built of."""

from torch import Tensor, nn


class ChannelNorm(nn.Module):
    """Layer norm over the channels of each position.

    Unlike a group norm it sees no neighbours: colours do not depend on the rest of the picture, and a crop of
    a picture has the crop of its latents.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ResidualBlock(nn.Module):
    """Norm, convolution, activation, convolution, added to the input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = ChannelNorm(channels)
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        nn.init.zeros_(self.conv2.weight)  # a block starts as the identity
        nn.init.zeros_(self.conv2.bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv2(nn.functional.silu(self.conv1(self.norm(x))))


def residual_blocks(channels: int, count: int) -> list[nn.Module]:
    """`count` blocks in a row, for nn.Sequential."""
    return [ResidualBlock(channels) for _ in range(count)]
