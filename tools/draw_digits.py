"""Make synthetic digits, for machines that can neither download MNIST nor have it already.

    python tools/draw_digits.py data/drawn
    python 01_baseline/train.py --data data/drawn

The digits come from the fonts that matplotlib ships. They are thickened, rotated, slanted, bent,
moved and noised, all from one seed, and written in MNIST's own file format. They are not
handwriting, so what a model scores on them says nothing about MNIST. A file NOT_MNIST.txt in the
folder says so, and the stages then write "synthetic digits" into their records.
"""

import argparse
import struct
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from PIL import Image, ImageDraw, ImageFont

try:
    import matplotlib
except ModuleNotFoundError:
    sys.exit("Drawing digits needs matplotlib. Run: pip install -r requirements/readers.txt")

CANVAS = 56  # pixels: two to a pixel of the finished 28 x 28 image
NOT_MNIST = "These digits were drawn by tools/draw_digits.py. They are not MNIST.\n"
FAMILIES = ("DejaVuSans", "DejaVuSerif", "STIXGeneral", "cmb10", "cmr10", "cmss10", "cmtt10")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="give the stages this folder as --data")
    parser.add_argument("--train", type=int, default=60_000, help="training images (60000)")
    parser.add_argument("--test", type=int, default=10_000, help="test images (10000)")
    parser.add_argument("--seed", type=int, default=0, help="start of the random numbers (0)")
    parser.add_argument(
        "--if-missing", action="store_true", help="keep digits that were drawn before"
    )
    args = parser.parse_args(arguments)
    raw = args.folder / "MNIST" / "raw"
    if args.train < 1 or args.test < 1:
        parser.error("--train and --test: at least one image")
    if raw.exists() and any(raw.iterdir()):  # a download that fails leaves an empty folder
        if args.if_missing:
            say_what_they_are(raw)  # Earlier versions of this script did not.
            return 0
        parser.error(f"{raw} is there already: delete it, or choose another folder")

    print(f"drawing {args.train:,} digits to train on and {args.test:,} to test on", flush=True)
    if args.train + args.test > 10_000:
        print("this takes about ten seconds on two idle cores", flush=True)
    draw_data_set(raw, args.train, args.test, args.seed)
    print(f"drawn in MNIST's format: {raw}")
    return 0


def draw_data_set(raw: Path, train: int, test: int, seed: int = 0) -> None:
    """Write so many training and test digits into the folder raw, in MNIST's four files.

    raw: FOLDER/MNIST/raw, which is new or empty. FOLDER/NOT_MNIST.txt says what the digits are.
    Raises OSError if they cannot be written.
    """
    generator = torch.Generator().manual_seed(seed)
    glyphs = render_glyphs(find_fonts())
    raw.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=raw.parent) as temp:
        drawn = Path(temp, "raw")
        drawn.mkdir()
        for part, count in (("train", train), ("t10k", test)):
            images, labels = draw(glyphs, count, generator)
            write_idx(Path(drawn, f"{part}-images-idx3-ubyte"), images)
            write_idx(Path(drawn, f"{part}-labels-idx1-ubyte"), labels)
        say_what_they_are(raw)  # before the digits, so that none are ever without it
        # All files appear at once. So an interrupt never leaves some of them.
        if raw.exists():
            raw.rmdir()
        drawn.rename(raw)


def say_what_they_are(raw: Path) -> None:
    """Write FOLDER/NOT_MNIST.txt for raw = FOLDER/MNIST/raw. A stage looks for it in --data."""
    (raw.parents[1] / "NOT_MNIST.txt").write_text(NOT_MNIST, encoding="utf-8")


def find_fonts() -> list[Path]:
    """The font files of FAMILIES, roman, bold and italic, in matplotlib's own data folder."""
    fonts = sorted(Path(matplotlib.get_data_path(), "fonts", "ttf").glob("*.ttf"))
    return [font for font in fonts if font.stem.startswith(FAMILIES) and "Display" not in font.stem]


def render_glyphs(fonts: list[Path]) -> torch.Tensor:
    """Each digit in each font, on the middle of a canvas: [fonts, 10, CANVAS, CANVAS], 0 to 1."""
    glyphs = torch.zeros(len(fonts), 10, CANVAS, CANVAS)
    middle = CANVAS / 2
    for row, font_file in enumerate(fonts):
        font = ImageFont.truetype(str(font_file), size=CANVAS * 3 // 4)
        for digit in range(10):
            image = Image.new("L", (CANVAS, CANVAS))
            ImageDraw.Draw(image).text((middle, middle), str(digit), 255, font, anchor="mm")
            pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
            glyphs[row, digit] = pixels.view(CANVAS, CANVAS) / 255
    return glyphs


def draw(
    glyphs: torch.Tensor, count: int, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw `count` digits -> (uint8 images [count, 28, 28], uint8 labels [count])."""
    labels = torch.randint(10, (count,), generator=generator)
    fonts = torch.randint(len(glyphs), (count,), generator=generator)
    images = []
    for font, digit in zip(fonts.split(2000), labels.split(2000), strict=True):
        images.append(distort(glyphs[font, digit].unsqueeze(1), generator))
    return torch.cat(images), labels.to(torch.uint8)


def distort(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Vary glyphs [n, 1, CANVAS, CANVAS] the way hands do -> uint8 images [n, 28, 28]."""
    n = len(x)

    def between(low: float, high: float, *shape: int) -> torch.Tensor:
        return low + (high - low) * torch.rand(n, *shape, generator=generator)

    weight = between(0, 1, 1, 1, 1)  # as drawn, thicker, thicker still
    x = torch.where(weight > 1 / 3, F.max_pool2d(x, 3, 1, 1), x)
    x = torch.where(weight > 2 / 3, F.max_pool2d(x, 3, 1, 1), x)

    angle = between(-0.35, 0.35)  # radians
    slant = between(-0.4, 0.4)  # shift per height
    width = between(0.8, 1.4)  # above 1 the digit gets smaller
    height = between(0.8, 1.2)
    cos = torch.cos(angle)
    sin = torch.sin(angle)
    matrix = torch.stack([cos * width, (slant - sin) * width, sin * height, cos * height], 1)
    moved = between(-0.2, 0.2, 2, 1)  # of half the image's width
    grid = F.affine_grid(torch.cat([matrix.view(n, 2, 2), moved], 2), [n, 1, 28, 28], False)
    bend = F.interpolate(between(-0.14, 0.14, 2, 4, 4), size=(28, 28), mode="bicubic")
    x = F.grid_sample(x, grid + bend.permute(0, 2, 3, 1), align_corners=False)

    ink = x * between(0.7, 1.3, 1, 1, 1) + between(-0.12, 0.12, 1, 28, 28)
    return (ink.clamp(0, 1) * 255).to(torch.uint8).squeeze(1)


def write_idx(path: Path, values: torch.Tensor) -> None:
    """Write a uint8 tensor in the IDX format that MNIST comes in: magic, sizes, bytes."""
    sizes = values.shape
    header = struct.pack(f">4B{len(sizes)}I", 0, 0, 8, len(sizes), *sizes)
    path.write_bytes(header + values.numpy().tobytes())


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("\ndraw_digits.py: interrupted, no digits were written", file=sys.stderr)
        sys.exit(130)
