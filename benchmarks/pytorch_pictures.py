"""Networks on pictures for `pytorch.py`, written by hand: classification, segmentation, detection."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Residual(nn.Module):
    """Two convolutions around which the input goes."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(before, width, 3, stride, 1), nn.Conv2d(width, width, 3, 1, 1)
        self.norms = nn.ModuleList([nn.BatchNorm2d(width), nn.BatchNorm2d(width)])
        self.around = nn.Conv2d(before, width, 1, stride) if stride > 1 or before != width else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Pictures [N, C, H, W]."""
        inner = self.norms[1](self.second(torch.relu(self.norms[0](self.first(x)))))
        return torch.relu(inner + self.around(x))


class Residuals(nn.Module):
    """A small ResNet."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 7, 2, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        self.blocks = nn.Sequential(Residual(16, 16, 1), Residual(16, 32, 2))
        self.head = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Pictures [N, 3, H, W] to scores [N, 10]."""
        return self.head(nn.functional.adaptive_avg_pool2d(self.blocks(self.stem(x)), 1).flatten(1))


class UNet(nn.Module):
    """Down, up, and across."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.deep = nn.Conv2d(3, 16, 3, 1, 1), nn.Conv2d(16, 32, 3, 2, 1)
        self.up, self.out = nn.ConvTranspose2d(32, 16, 2, 2), nn.Conv2d(32, 4, 3, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Pictures [N, 3, H, W] to maps [N, 4, H, W]."""
        down = nn.functional.silu(self.down(x))
        up = self.up(nn.functional.silu(self.deep(down)))
        wide = nn.functional.interpolate(up, size=down.shape[-2:], mode="bilinear", align_corners=False)
        return self.out(torch.cat([down, wide], 1))


def convolved(
    before: int, width: int, kernel: int = 3, stride: int = 1, groups: int = 1, dilation: int = 1
) -> nn.Module:
    """A convolution that keeps the size but for its stride, batch normalization and ReLU."""
    padding = dilation * (kernel - 1) // 2
    convolution = nn.Conv2d(before, width, kernel, stride, padding, dilation, groups, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(width), nn.ReLU(inplace=True))


class Bottleneck(nn.Module):
    """Narrow, convolve, widen by four; the input goes around."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(convolved(before, width, 1), convolved(width, width, 3, stride))
        self.widen, self.norm = nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)
        around = nn.Sequential(nn.Conv2d(before, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width))
        self.around = around if before != 4 * width else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Pictures [N, C, H, W]."""
        return torch.relu(self.norm(self.widen(self.inner(x))) + self.around(x))


def resnet50() -> nn.Module:
    """ResNet-50 as published, with strides in the middle: pictures [N, 3, H, W] to scores [N, 1000]."""
    stem = nn.Sequential(convolved(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1))
    blocks, before = [], 64
    for stage, (width, count) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
        for place in range(count):
            blocks.append(Bottleneck(before, width, 2 if stage and not place else 1))
            before = 4 * width
    return nn.Sequential(stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 1000))


class Inverted(nn.Module):
    """Widen, convolve every channel by itself, weigh channels, narrow."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        wide = 4 * before
        self.widen, self.each = convolved(before, wide, 1), convolved(wide, wide, 5, stride, groups=wide)
        self.weigh = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(wide, before, 1), nn.ReLU(), nn.Conv2d(before, wide, 1), nn.Hardsigmoid()
        )
        self.narrow = nn.Sequential(nn.Conv2d(wide, width, 1, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        """Pictures [N, C, H, W]."""
        y = self.each(self.widen(x))
        y = self.narrow(y * self.weigh(y))
        return x + y if x.shape == y.shape else y


def mobilenet() -> nn.Module:
    """A small MobileNetV3: pictures [N, 3, H, W] to scores [N, 10]."""
    stem = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.Hardswish(inplace=True))
    blocks = (Inverted(16, 16, 1), Inverted(16, 24, 2), Inverted(24, 24, 1))
    return nn.Sequential(stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(24, 10))


class DenseBlock(nn.Module):
    """Convolutions that read all that came before them."""

    def __init__(self, before: int, growth: int, count: int) -> None:
        super().__init__()
        widths = [before + growth * place for place in range(count)]
        self.steps = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, growth, 3, 1, 1, bias=False))
            for width in widths
        )

    def forward(self, x: Tensor) -> Tensor:
        """Pictures [N, C, H, W], wider by what is grown."""
        parts = [x]
        for step in self.steps:
            parts.append(step(torch.cat(parts, 1)))
        return torch.cat(parts, 1)


def densenet() -> nn.Module:
    """A small DenseNet: pictures [N, 3, H, W] to scores [N, 10]."""
    between = (nn.BatchNorm2d(48), nn.ReLU(), nn.Conv2d(48, 24, 1, bias=False), nn.AvgPool2d(2))
    return nn.Sequential(
        *(convolved(3, 16, 7, 2), nn.MaxPool2d(3, 2, 1), DenseBlock(16, 8, 4), *between, DenseBlock(24, 8, 4)),
        *(nn.BatchNorm2d(56), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(56, 10)),
    )


class DeepLab(nn.Module):
    """Dilated convolutions beside each other and a mean of the whole picture, as DeepLabV3 has them."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(convolved(3, 16, 3, 2), Residual(16, 32, 2), convolved(32, 32, dilation=2))
        self.rates = nn.ModuleList([convolved(32, 16, 1), *(convolved(32, 16, dilation=rate) for rate in (3, 6))])
        self.whole = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(32, 16, 1), nn.ReLU())
        self.head = nn.Sequential(convolved(64, 16, 1), nn.Conv2d(16, 5, 1))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Pictures [N, 3, H, W] to maps [N, 5, H, W]."""
        y = self.body(x)
        whole = functional.interpolate(self.whole(y), size=y.shape[-2:], mode="bilinear", align_corners=False)
        scores = self.head(torch.cat([*(rate(y) for rate in self.rates), whole], 1))
        return {"out": functional.interpolate(scores, size=x.shape[-2:], mode="bilinear", align_corners=False)}


class FullyConvolutional(nn.Module):
    """Scores at two sizes, added up and made larger by transposed convolutions, as FCN has them."""

    def __init__(self) -> None:
        super().__init__()
        self.fine, self.coarse = convolved(3, 16, 3, 2), convolved(16, 32, 3, 2)
        self.of_fine, self.of_coarse = nn.Conv2d(16, 5, 1), nn.Conv2d(32, 5, 1)
        self.twice, self.back = nn.ConvTranspose2d(5, 5, 4, 2, 1), nn.ConvTranspose2d(5, 5, 4, 2, 1, groups=5)

    def forward(self, x: Tensor) -> Tensor:
        """Pictures [N, 3, H, W] to maps [N, 5, H, W]."""
        fine = self.fine(x)
        return self.back(self.twice(self.of_coarse(self.coarse(fine))) + self.of_fine(fine))


class Detector(nn.Module):
    """Boxes from two sizes of maps, of which those are kept that overlap no better one."""

    def __init__(self) -> None:
        super().__init__()
        self.fine = nn.Sequential(convolved(3, 16, 3, 2), convolved(16, 24, 3, 2))
        self.coarse = convolved(24, 24, 3, 2)
        self.heads = nn.ModuleList([nn.Conv2d(24, 4 + 3, 3, 1, 1), nn.Conv2d(24, 4 + 3, 3, 1, 1)])

    def forward(self, x: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Pictures [N, 3, H, W] to boxes [K, 4] (left, top, right, bottom), scores [K] and classes [K] of each."""
        fine = self.fine(x)
        levels = [
            _boxes(head(level), stride)
            for head, level, stride in zip(self.heads, (fine, self.coarse(fine)), (4, 8), strict=True)
        ]
        boxes, scores = (torch.cat(parts, 1) for parts in zip(*levels, strict=True))
        best, classes = scores.max(-1)
        chosen, places = best.topk(24, dim=1)
        boxes = boxes.gather(1, places[..., None].expand(-1, -1, 4))
        keep = _kept(boxes, classes.gather(1, places)) & (chosen > 0.5)
        kinds = classes.gather(1, places)
        return [(boxes[n][keep[n]], chosen[n][keep[n]], kinds[n][keep[n]]) for n in range(len(x))]


def _boxes(given: Tensor, stride: int) -> tuple[Tensor, Tensor]:
    """What a head gives, [N, 4 + classes, H, W], as boxes [N, H * W, 4] in pixels and scores [N, H * W, classes]."""
    rows, columns = torch.arange(given.shape[2]), torch.arange(given.shape[3])
    centers = torch.stack(torch.meshgrid(columns, rows, indexing="xy"), -1).reshape(-1, 2) * stride + stride / 2
    flat = given.flatten(2).transpose(1, 2)
    halves = flat[..., 2:4].clamp(max=3).exp() * 2 * stride
    middles = centers + flat[..., :2].tanh() * stride
    return torch.cat([middles - halves, middles + halves], -1), flat[..., 4:].sigmoid()


def _kept(boxes: Tensor, classes: Tensor, most: float = 0.5) -> Tensor:
    """Which boxes [N, K, 4], the best first, overlap no better box of their class that is kept."""
    left, right = torch.maximum(boxes[:, :, None, :2], boxes[:, None, :, :2]), boxes[:, :, None, 2:]
    shared = (torch.minimum(right, boxes[:, None, :, 2:]) - left).clamp(min=0).prod(-1)
    areas = (boxes[..., 2:] - boxes[..., :2]).prod(-1)
    overlaps = shared / (areas[:, :, None] + areas[:, None] - shared) > most
    rivals = (overlaps & (classes[:, :, None] == classes[:, None])).triu(1)
    keep = torch.ones_like(classes, dtype=torch.bool)
    for better in range(boxes.shape[1]):
        keep = keep & ~(rivals[:, better] & keep[:, better, None])
    return keep
