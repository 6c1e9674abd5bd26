"""The pictures that pages and notebooks share. Each function takes the data of its notebook.

    python -m notebooks.pictures.moving    # draw all again, in the notebooks and for the pages

A notebook measures the data of its pictures. They are stored in the picture, so the command above
needs no notebook to run. Use it after a change of a drawing.

Every function returns the text of an SVG file. Its last argument gives the words of another
language by the English ones; English stays where one is missing.
"""

import json
from pathlib import Path
from typing import NamedTuple

from .chinese import CHINESE
from .svg import WIDTH, Picture, Words, data_of, words_of

ROOT = Path(__file__).resolve().parents[2]
FILES = {  # where a picture of a page is committed; next to it is NAME.zh.svg, with Chinese words
    "average": "01_baseline/average.svg",
    "copies": "02_dp/copies.svg",
    "idea": "03_ddp_spawn/idea.svg",
    "buckets": "03_ddp_spawn/buckets.svg",
    "launch": "04_ddp_torchrun/launch.svg",
    "failures": "04_ddp_torchrun/failures.svg",
    "nodes": "05_multinode/nodes.svg",
    "ring": "05_multinode/ring.svg",
}
MIDDLE = WIDTH / 2


def main() -> None:
    for notebook in sorted(ROOT.glob("notebooks/*.ipynb")):
        for path in draw_again(notebook):
            print(f"{path.relative_to(ROOT)}  {path.stat().st_size / 1000:.1f} kB")


def draw_again(notebook: Path) -> list[Path]:
    """Draw the pictures in a notebook from the data in them, and write those of the pages

    -> the files of the pages.
    """
    book = json.loads(notebook.read_text(encoding="utf-8"))
    words = CHINESE if notebook.name.endswith(".zh.ipynb") else None
    written = []
    for output in moving_pictures(book):
        name, data = data_of("".join(output["data"]["image/svg+xml"]))
        if name in FILES:
            english = ROOT / FILES[name]
            english.write_text(draw(name, data), encoding="utf-8")
            chinese = english.with_suffix(".zh.svg")
            chinese.write_text(draw(name, data, CHINESE), encoding="utf-8")
            written += [english, chinese]
        svg = draw(name, data, words)
        output["data"]["image/svg+xml"] = svg.splitlines(keepends=True)
        output["data"]["text/plain"] = "\n".join(words_of(svg)).splitlines(keepends=True)
        output["metadata"]["image/svg+xml"]["alt"] = words_of(svg)[0]
    if written:
        text = json.dumps(book, indent=1, ensure_ascii=False, sort_keys=True)
        notebook.write_text(f"{text}\n", encoding="utf-8")
    return written


def moving_pictures(book: dict) -> list[dict]:
    """The outputs of a notebook that are SVG: a dictionary of "data" and "metadata" each."""
    found = []
    for cell in book["cells"]:
        for output in cell.get("outputs", []):
            if "image/svg+xml" in output.get("data", {}):
                found.append(output)
    return found


def draw(name: str, data: dict, words: Words = None) -> str:
    """Draw one of the pictures below: data has the arguments of its function."""
    return globals()[name](**data, words=words)


def number(value: float) -> str:
    return f"{value:.4g}"


def list_of_steps(picture: Picture, y: float, steps: list[tuple[float, float, str]]) -> None:
    """Numbered lines from y downwards, each lit from its start to its end: (start, end, words)"""
    for place, (start, end, english) in enumerate(steps, start=1):
        with picture.lit(start, end):
            picture.text(28, y, "{}", place, look="bold")
            picture.text(56, y, english)
        y += 29


# ---------------------------------------------------------------- stage 1


def average(shards: list[list[float]], whole: list[float], size: int, words: Words = None) -> str:
    """The first numbers of four shards' gradients, their average, and those of the whole batch.

    shards: the numbers of each shard. whole: those of the batch. size: of a whole gradient.
    """
    picture = Picture("average", "Four gradients average to that of the batch", 412, 11, words)
    for device in range(len(shards)):
        mark(picture, 40 + 138 * device, 64, device)
        picture.text(56 + 138 * device, 71, "shard {}", device)
    with picture.appears(2.4):
        picture.dot(42, 98, 12, "line")
        picture.text(64, 105, "whole batch")
    with picture.appears(5.4):
        picture.dot(316, 98, 6, "full mix")
        picture.text(332, 105, "average of the shards")
    values = [value for shard in shards for value in shard]
    low = min(values)
    high = max(values)

    def height(value: float) -> float:
        return 362 - 226 * (value - low) / (high - low)

    picture.path([(24, height(0)), (576, height(0))], "dotted")
    picture.text(28, height(0) - 6, "0", look="small dim")
    for column, of_batch in enumerate(whole):
        x = 72 + 65 * column
        mean = sum(shard[column] for shard in shards) / len(shards)
        with picture.appears(2.4):
            picture.dot(x, height(of_batch), 12, "line")
        for device, shard in enumerate(shards):
            y = height(shard[column])
            mark(picture, x, y, device)
            with picture.travels(4, 5.8, down=height(mean) - y):
                mark(picture, x, y, device)
        with picture.appears(5.4):
            picture.dot(x, height(mean), 6, "full mix")
    counted = (len(whole), f"{size:,}")
    picture.text(MIDDLE, 396, "the first {} of {} numbers of a gradient", *counted, look="middle")
    description = picture.say(
        "For each of {} numbers of the gradient, four marks show the values of four shards. They "
        "differ. A circle shows the value of the whole batch. The average of the four marks lies "
        "in the circle each time.",
        len(whole),
    )
    return picture.svg(description, {"shards": shards, "whole": whole, "size": size})


def mark(picture: Picture, x: float, y: float, device: int) -> None:
    """The mark of a device: a disc, a square, a triangle or a diamond."""
    look = f"full c{device}"
    if device == 0:
        picture.dot(x, y, 6.5, look)
    elif device == 1:
        picture.box(x - 6, y - 6, 12, 12, look, round=0)
    elif device == 2:
        picture.path([(x, y - 8), (x + 8, y + 6), (x - 8, y + 6)], look)
    else:
        picture.path([(x, y - 8), (x + 8, y), (x, y + 8), (x - 8, y)], look)


# ---------------------------------------------------------------- stage 2


def copies(images: list[int], words: Words = None) -> str:
    """A step of nn.DataParallel: what GPU 0 sends to the others, and what comes back.

    images: of each of the four devices.
    """
    picture = Picture("copies", "DataParallel: one process, a thread per GPU", 527, 19, words)
    picture.box(14, 50, 572, 276, "dashed", round=10)
    picture.text(24, 178, "one process", look="small dim")
    for x, foot in ((216, 112), (300, 300), (384, 488)):
        picture.path([(x, 154), (foot, 202)], arrow=True)
        picture.path([(foot + 14, 202), (x + 14, 158)], arrow=True)
    picture.box(140, 64, 320, 90, "ground", round=8)
    picture.text(150, 116, "GPU 0", look="small bold")
    chip(picture, 226, 72, "tint c0", "model")
    picture.labelled(226, 112, 226, 32, "paper small", "batch of {}", sum(images))
    with picture.appears(3.4):
        chip(picture, 344, 72, "tint c1", "{} images", images[0])
    for device in (1, 2, 3):
        left = 22 + 188 * (device - 1)
        late = 0.4 * (device - 1)  # seconds, so that they do not hide one another
        picture.box(left, 204, 180, 112, "ground", round=8)
        picture.text(left + 90, 306, "GPU {}", device, look="small bold middle")
        x = left + 36
        with picture.appears(0.8 + late, 226 - x, -140, takes=1.4):
            chip(picture, x, 212, "tint c0", "model")
        with picture.appears(3.4 + late, 344 - x, -178, takes=1.4):
            chip(picture, x, 250, "tint c1", "{} images", images[device])
        with picture.travels(8.6 + late, 10.4 + late, 284 - x, -138):
            chip(picture, x, 250, "full c2", "outputs")
        with picture.travels(11.4 + late, 13.2 + late, x - 344, 138):
            chip(picture, 344, 112, "full c2", "gradients")
        with picture.travels(14.2 + late, 16 + late, 226 - x, -140):
            chip(picture, x, 212, "full c3", "gradients")
    with picture.travels(6.2, 8.4):  # All GPUs compute.
        picture.box(140, 64, 320, 90, "edge c2", round=8)
        picture.box(22, 204, 180, 112, "edge c2", round=8)
        picture.box(210, 204, 180, 112, "edge c2", round=8)
        picture.box(398, 204, 180, 112, "edge c2", round=8)
    with picture.appears(5.8):  # On the left is what goes down, on the right what comes back.
        picture.path([(24, 76), (24, 136)], arrow=True)
        picture.text(85, 88, "1: model", look="small middle")
        picture.text(85, 113, "2: images", look="small middle")
    with picture.appears(13.2):
        picture.text(85, 138, "5: gradients", look="small middle")
    with picture.appears(16):
        picture.text(514, 101, "4: outputs", look="small middle")
        picture.text(514, 126, "6: gradients", look="small middle")
        picture.path([(576, 136), (576, 76)], arrow=True)
    steps = [
        (0.6, 3.2, "replicate: GPU 0 copies the model to all"),
        (3.2, 5.8, "scatter: GPU 0 splits the batch"),
        (5.8, 8.4, "parallel apply: all GPUs compute"),
        (8.4, 11.4, "gather: the outputs come back to GPU 0"),
        (11.4, 14, "backward: gradients of the outputs go down"),
        (14, 18.4, "those of the weights come back and are added"),
    ]
    list_of_steps(picture, 358, steps)
    description = picture.say(
        "One process has four GPUs. In each step GPU 0 copies the model to the three others, and "
        "sends each of them {} of the {} images. All four compute. The outputs come back to GPU 0, "
        "which sends the gradients of the outputs down. The gradients of the weights come back, "
        "and GPU 0 adds them up. It alone updates its model.",
        images[1],
        sum(images),
    )
    return picture.svg(description, {"images": images})


def chip(picture: Picture, x: float, y: float, look: str, english: str, *values) -> None:
    """A thing that can be sent. With the look "full" it is on its way."""
    picture.box(x, y, 108, 32, look)
    ink = "inverse" if look.startswith("full") else ""
    picture.text(x + 54, y + 22, english, *values, look=f"small middle {ink}")


# ---------------------------------------------------------------- stage 3, and the first page


COLUMNS = (116, 484)  # the middles of the columns of the ranks


def idea(
    weight: float, gradients: list[float], average: float, after: float, words: Words = None
) -> str:
    """One step of two ranks: the batch is split, the gradients are averaged, the weights are equal.

    weight, after: on both ranks, before and after the step. gradients: one of each rank.
    """
    picture = Picture("idea", "One step of training on two ranks", 478, 14, words)
    mean = number(average)
    rate = number((weight - after) / average)
    for rank, center in enumerate(COLUMNS):
        picture.box(center - 100, 100, 200, 364, "ground", round=10)
        picture.text(center, 126, "rank {}", rank, look=f"bold middle words c{rank}")
    split_batch(picture)
    with picture.appears(5.8):
        picture.box(154, 330, 292, 46, "paper")
    for rank, center in enumerate(COLUMNS):
        own = number(gradients[rank])
        inner = (190, 410)[rank]  # where the arrows to the average end
        model = center - 84
        picture.labelled(model, 188, 168, 44, "paper small", "model: w = {}", number(weight))
        with picture.appears(4.2, down=-40, takes=0.8):
            picture.path([(center, 234), (center, 250)], arrow=True)
            picture.labelled(center - 70, 254, 140, 44, f"tint c{rank}", "gradient {}", own)
        with picture.appears(6):
            picture.path([(center, 300), (inner, 326)], arrow=True)
        with picture.travels(6.2, 7.8, MIDDLE - center, 77):
            flying(picture, center, 257, f"full c{rank}", own)
        with picture.travels(8.6, 10.2, center - MIDDLE, 66):
            flying(picture, MIDDLE, 334, "full mix", mean)
        with picture.appears(10):
            picture.path([(inner, 378), (center, 396)], arrow=True)
            picture.box(center - 90, 398, 180, 58, "paper")
            step = (number(weight), rate, mean)
            picture.text(center, 421, "w = {} - {} x {}", *step, look="middle small")
            picture.text(center, 447, "w = {}", number(after), look="middle bold")
    with picture.appears(7.6):
        total = " + ".join(number(gradient) for gradient in gradients)
        picture.labelled(154, 330, 292, 46, "tint mix", "({}) / 2 = {}", total, mean)
    captions = [
        (0.6, 2.8, 162, "1 split", ""),
        (2.8, 5.8, 205, "2 forward,", "backward"),
        (5.8, 8.4, 318, "3 average", ""),
        (8.4, 13.6, 412, "4 same step,", "equal weights"),
    ]
    for start, end, y, first, second in captions:
        with picture.lit(start, end):
            picture.text(MIDDLE, y, first, look="middle bold small")
            if second:
                picture.text(MIDDLE, y + 25, second, look="middle bold small")
    description = picture.say(
        "A batch of eight images is split between two ranks. Both ranks have the whole model, with "
        "the weight {}. Each computes a gradient of its own images: {} on rank 0, {} on rank 1. "
        "Both ranks get the average, {}, and take the same step. So both have the weight {} now.",
        number(weight),
        number(gradients[0]),
        number(gradients[1]),
        mean,
        number(after),
    )
    data = {"weight": weight, "gradients": gradients, "average": average, "after": after}
    return picture.svg(description, data)


def flying(picture: Picture, center: float, y: float, look: str, value: str) -> None:
    """A number on its way."""
    picture.box(center - 24, y, 48, 38, look)
    picture.text(center, y + 26, value, look="middle inverse")


def split_batch(picture: Picture) -> None:
    """Eight images above both columns, of which four go to each.

    Nothing stands on the images, because readers would compute with a number on them.
    """
    picture.text(28, 76, "{} images", 8, look="dim")
    for place in range(8):
        rank = place // 4
        above = MIDDLE - 154 + 39 * place
        own = COLUMNS[rank] - 76 + 39 * (place - 4 * rank)
        with picture.lit(0, 2.2):
            image(picture, above, 52)
        with picture.appears(1.2, above - own, -86, takes=1.2):
            image(picture, own, 138)


def image(picture: Picture, x: float, y: float) -> None:
    """A small image: a frame with a hill and a sun."""
    picture.box(x, y, 35, 35, "paper")
    picture.path([(x + 6, y + 28), (x + 15, y + 15), (x + 21, y + 22), (x + 29, y + 28)])
    picture.dot(x + 25, y + 11, 3, "thin")


def buckets(order: list[int], filled: list[list[int]], words: Words = None) -> str:
    """The gradients of one backward pass, the buckets that they fill, and when these are sent.

    order: the parameters, as their gradients become ready. filled: the parameters of each bucket.
    """
    pace = 0.8  # seconds of a gradient
    cell = 44
    left = 28
    length = 2.4  # cells of an all-reduce; the picture has the order of events, not their times
    first = 0.6
    over = first + pace * len(order)
    seconds = over + pace * length + 3.2
    picture = Picture("buckets", "Buckets travel while backward still runs", 356, seconds, words)
    picture.text(left, 68, "backward: the last layer's gradients come first", look="small dim")
    picture.text(left, 156, "buckets fill", look="small dim")
    picture.text(left, 250, "averaging: DDP divides, all-reduce adds up", look="small dim")
    ready = 0
    for place, bucket in enumerate(filled):
        start = left + cell * ready
        width = cell * len(bucket)
        picture.box(start, 166, width - 4, 50, "ground")
        for _ in bucket:
            x = left + cell * ready
            second = first + pace * ready
            with picture.appears(second, takes=0.2):
                picture.labelled(x, 78, 40, 40, f"tint c{place}", "{}", order[ready])
            with picture.appears(second + 0.2, 0, -93, takes=0.5):
                picture.labelled(x + 3, 174, 34, 34, f"tint c{place}", "{}", order[ready])
            ready += 1
        full = first + pace * ready
        end = start + width
        with picture.appears(full - 0.1, takes=0.2):
            picture.box(start, 166, width - 4, 50, f"edge c{place}")
        with picture.grows(full, full + pace * length):
            picture.box(end, 262, cell * length, 44, f"full c{place}")
        with picture.appears(full + 0.8):
            x = end + cell * length / 2
            picture.text(x, 291, "bucket {}", place, look="middle small inverse")
    end = left + cell * len(order) - 1
    with picture.appears(over):
        picture.path([(end, 62), (end, 316)], "dotted")
        picture.text(end + 10, 94, "backward", look="small")
        picture.text(end + 10, 117, "is over", look="small")
        picture.text(end + 10, 338, "rank waits", look="small")
    description = picture.say(
        "{} gradients become ready one after the other. Bucket 0 is full after {} of them, and is "
        "averaged while backward computes the next ones. Only the last bucket, {}, is averaged "
        "when backward is over. The axis shows the order of events, not their times.",
        len(order),
        len(filled[0]),
        len(filled) - 1,
    )
    return picture.svg(description, {"order": order, "filled": filled})


# ---------------------------------------------------------------- stage 4


def launch(environments: list[dict[str, str]], words: Words = None) -> str:
    """Who starts whom: torchrun, two ranks, the store, and the connection between the ranks.

    environments: RANK, LOCAL_RANK and WORLD_SIZE of each rank.
    """
    picture = Picture("launch", "torchrun runs the whole script in each rank", 484, 18, words)
    command = "torchrun --standalone --nproc-per-node 2 minimal.py"
    picture.labelled(44, 54, 512, 44, "ground small", command)
    picture.labelled(246, 136, 108, 40, "ground small", "store")
    picture.path([(MIDDLE, 98), (MIDDLE, 136)])
    for rank, own in enumerate(environments):
        color = f"c{rank}"
        left = (24, 366)[rank]
        center = left + 105
        start = (190, 410)[rank]  # of the arrow from torchrun
        inner = (206, 394)[rank]  # the side of the box that is next to the other rank
        with picture.appears(1.4):
            picture.path([(start, 100), (center, 192)], arrow=True)
            picture.box(left, 196, 210, 122, f"tint {color}", round=8)
            picture.text(left + 14, 224, "minimal.py", look="bold")
        with picture.travels(3.4, 5, center - start, 118):
            sent(picture, start, 78, color, "RANK={}", own["RANK"])
        with picture.appears(4.8):
            picture.text(left + 14, 252, "RANK={}", own["RANK"], look="small")
            picture.text(left + 14, 277, "LOCAL_RANK={}", own["LOCAL_RANK"], look="small")
            picture.text(left + 14, 302, "WORLD_SIZE={}", own["WORLD_SIZE"], look="small")
        with picture.appears(6):
            store = (244, 356)[rank]
            picture.path([(inner, 194), (store, 170)], "dotted")
        with picture.travels(6.2, 7.8, MIDDLE - inner, -36):
            sent(picture, inner, 176, color, "address")
        with picture.travels(8, 9.6, inner - MIDDLE, 36):
            sent(picture, MIDDLE, 140, f"c{1 - rank}", "address")
    with picture.appears(10):
        picture.path([(238, 248), (360, 248)], arrow=True)
        picture.path([(362, 274), (240, 274)], arrow=True)
    with picture.travels(10.6, 12.4, across=90):
        picture.dot(255, 248, 8, "full c0")
    with picture.travels(10.6, 12.4, across=-90):
        picture.dot(345, 274, 8, "full c1")
    steps = [
        (0.6, 3.2, "torchrun starts the script once per rank"),
        (3.2, 5.8, "it tells each rank its numbers"),
        (5.8, 9.8, "the ranks exchange addresses in a store"),
        (9.8, 13, "then they exchange gradients directly"),
        (13, 17.6, "torchrun watches: if one fails, it stops all"),
    ]
    list_of_steps(picture, 350, steps)
    description = picture.say(
        "torchrun starts minimal.py in two processes. It tells each its RANK, LOCAL_RANK "
        "and WORLD_SIZE. The ranks write their addresses to a store, read the address of the "
        "other rank there, and connect to each other. torchrun watches the processes.",
    )
    return picture.svg(description, {"environments": environments})


def sent(picture: Picture, center: float, y: float, color: str, english: str, *values) -> None:
    """What travels to a rank or from it."""
    picture.box(center - 48, y, 96, 32, f"full {color}")
    picture.text(center, y + 22, english, *values, look="small middle inverse")


class Lane(NamedTuple):
    """What one rank does. Its times are not to scale: they tell the order only."""

    computes: float  # until then
    idle: str = ""  # how it spends the time until it ends
    says: str = ""  # how it ends by itself; nothing if torchrun stops it


# The unit of time in which torchrun stops all: a little after the first failure that it sees.
STOPS = {"hangs": 6.5, "raises": 1.5, "exits early": 4.2, "is killed": 1.5}
SEEN = 0.5  # units of time from a failure until torchrun stops all
LANES = {  # by the way to fail: the rank that fails, and the other one
    "hangs": (Lane(1, "hangs"), Lane(3.7, "waits", "timeout")),
    "raises": (Lane(1, says="ValueError"), Lane(1.5)),
    "exits early": (Lane(1, says="exit code 0"), Lane(3.7, says="connection closed")),
    "is killed": (Lane(1, says="SIGKILL"), Lane(1.5)),
}
PACE = 0.55  # seconds of a unit of time in the picture
UNIT = 46  # its width


def failures(cases: dict[str, list], words: Words = None) -> str:
    """Runs of two ranks, one below the other: which rank fails first, and which torchrun names.

    cases: for each, the rank that fails first, how it fails, and the rank in torchrun's report.
    """
    title = "Who failed first, and whom torchrun names"
    picture = Picture("failures", title, 526, 25, words)
    start = 0.6
    y = 78
    for case, (failed, how, named) in cases.items():
        stop = start + PACE * STOPS[how]
        picture.text(24, y, case, look="bold")
        picture.text(50, y, f"rank {{}} {how}", failed)
        of_failed, of_other = LANES[how]
        draw_lane(picture, failed, of_failed, STOPS[how], y + 12 + 32 * failed, start)
        other = 1 - failed
        draw_lane(picture, other, of_other, STOPS[how], y + 12 + 32 * other, start)
        verdict = "names rank {}: right" if named == failed else "names rank {}: wrong"
        with picture.appears(stop):
            x = 102 + UNIT * STOPS[how]
            picture.path([(x, y + 8), (x, y + 74)], "dotted")
            picture.text(576, y, verdict, named, look="bold right")
        start = stop + 2.6
        y += 108
    cross(picture, 30, 488)
    picture.text(50, 501, "fails", look="small")
    picture.dot(130, 494, 7, "line")
    picture.text(146, 501, "exits without an error", look="small")
    picture.path([(372, 482), (372, 506)], "dotted")
    picture.text(384, 501, "torchrun stops all", look="small")
    wrong = [case for case, (failed, _, named) in cases.items() if failed != named]
    description = picture.say(
        "Four runs of two ranks. In each, one rank fails first, and torchrun's report names one. "
        "In the cases {} it names a rank that did not fail first.",
        ", ".join(wrong),
    )
    return picture.svg(description, {"cases": cases})


def draw_lane(picture: Picture, rank: int, lane: Lane, stop: float, y: float, start: float) -> None:
    """A bar for what a rank does from the second `start` on, and how it ends.

    stop: the unit of time in which torchrun stops all.
    """
    color = f"c{rank}"
    computed = start + PACE * lane.computes
    picture.text(24, y + 20, "rank {}", rank, look="small dim")
    with picture.grows(start, computed):
        picture.box(100, y, UNIT * lane.computes, 26, f"full {color}", round=3)
    if lane.computes > 3:
        with picture.appears(computed - 0.6):
            picture.text(178, y + 20, "computes", look="small middle inverse")
    x = 100 + UNIT * lane.computes
    ends = computed
    if lane.idle:
        until = stop - SEEN if lane.says else stop
        width = UNIT * (until - lane.computes)
        ends = start + PACE * until
        with picture.grows(computed, ends):
            picture.box(x + 1.5, y + 1.5, width - 3, 23, f"edge {color}", round=3)
        with picture.appears((computed + ends) / 2):
            picture.text(x + width / 2, y + 20, lane.idle, look="small middle")
        x += width
    if lane.says:
        with picture.appears(ends, takes=0.2):
            if lane.says == "exit code 0":
                picture.dot(x + 12, y + 13, 7, "line")
            else:
                cross(picture, x + 6, y + 7)
            picture.text(x + 30, y + 20, lane.says, look="small")


def cross(picture: Picture, x: float, y: float) -> None:
    picture.path([(x, y), (x + 12, y + 12)])
    picture.path([(x, y + 12), (x + 12, y)])


# ---------------------------------------------------------------- stage 5


def nodes(ranks: list[dict[str, int]], words: Words = None) -> str:
    """The ranks of two nodes: RANK, LOCAL_RANK and GPU. Nothing happens in time, so nothing moves.

    ranks: RANK, LOCAL_RANK and GROUP_RANK of each.
    """
    picture = Picture("nodes", "LOCAL_RANK begins at 0 on every node", 390, 1, words)
    for own in ranks:
        node = own["GROUP_RANK"]
        local = own["LOCAL_RANK"]
        top = 52 + 162 * node
        if local == 0:
            picture.box(14, top, 572, 124, "dashed", round=10)
            picture.text(28, top + 56, "node {}", node, look="bold")
            picture.text(28, top + 84, "GROUP_RANK={}", node, look="small")
        left = 196 + 194 * local
        picture.box(left, top + 12, 182, 100, f"tint c{own['RANK']}")
        picture.text(left + 91, top + 42, "RANK={}", own["RANK"], look="bold middle")
        picture.text(left + 91, top + 70, "LOCAL_RANK={}", local, look="middle")
        picture.text(left + 91, top + 98, "cuda:{}", local, look="middle")
    picture.path([(100, 178), (100, 212)])
    picture.text(112, 202, "network", look="small dim")
    picture.text(
        MIDDLE, 368, "RANK: who saves and prints. LOCAL_RANK: which GPU.", look="small middle"
    )
    description = picture.say(
        "Two nodes with two ranks each. RANK counts on from node 0 to node 1: 0, 1, 2, 3. "
        "LOCAL_RANK begins again on node 1: 0, 1, 0, 1. It chooses the GPU of the node.",
    )
    return picture.svg(description, {"ranks": ranks})


FIRST = 1.5  # the second in which the first step of the ring begins
STEP = 2.4  # seconds of a step
ARRIVES = 1.8  # seconds from the beginning of a step until the chunks arrive
PLACES = [(16, 106), (348, 106), (348, 236), (16, 236)]  # of ranks 0 to 3, around the ring


def lost_node(words: Words = None) -> str:
    """A node is lost in the second epoch. Both nodes resume from the snapshot of the first one."""
    picture = Picture("lost_node", "A node is lost, and the run resumes", 236, 12, words)
    rows = {"other node": (64, 0, 64), "lost node": (124, 1, 34)}
    for node, (y, color, lasts) in rows.items():  # lasts: the width of what is lost of epoch 2
        picture.text(12, y + 26, node, look="small dim")
        with picture.grows(0.4, 2.4):
            picture.box(116, y, 92, 38, f"full c{color}", round=3)
        with picture.appears(1.6):
            picture.text(162, y + 26, "epoch 1", look="small middle inverse")
        with picture.grows(2.8, 2.8 + lasts / 34):
            picture.box(216, y + 1, lasts, 36, f"tint c{color}", round=3)
        with picture.grows(8.4, 10.4):
            picture.box(494, y, 92, 38, f"full c{color}", round=3)
        with picture.appears(9.6):
            picture.text(540, y + 26, "epoch 2", look="small middle inverse")
    with picture.appears(2.6):
        picture.path([(212, 54), (212, 186)], "dotted")
        picture.text(212, 212, "snapshot", look="small middle")
    with picture.appears(3.9):
        cross(picture, 256, 137)
        picture.text(276, 150, "killed", look="small")
    with picture.appears(4.8):
        cross(picture, 286, 77)
        picture.text(306, 90, "connection closed", look="small")
    with picture.appears(7):
        picture.text(478, 150, "started again", look="small right")
    with picture.appears(8):
        picture.path([(487, 54), (487, 186)], "dotted")
        picture.text(466, 212, "both resume after epoch 1", look="small middle")
    description = picture.say(
        "Two nodes over time. After epoch 1 the snapshot is written. In epoch 2 a node is killed. "
        "The other node finds its connection closed, and waits until the lost one is started "
        "again. Then both resume from the snapshot. What they had done of epoch 2 is lost."
    )
    return picture.svg(description, {})


def ring(sends: list[list[int]], words: Words = None) -> str:
    """A ring all-reduce of four ranks: whose numbers each chunk contains, step by step.

    sends: for each step, the chunk that each rank sends to the next one. In the first three steps
    the receiver adds the chunk to its own, and in the last three the chunk replaces its own.
    """
    seconds = FIRST + STEP * len(sends) + 3
    picture = Picture("ring", "Ring all-reduce: four ranks, six steps", 474, seconds, words)
    states = ring_states(sends)
    picture.path([(256, 126), (342, 126)], arrow=True)
    picture.path([(466, 152), (466, 230)], arrow=True)
    picture.path([(344, 256), (258, 256)], arrow=True)
    picture.path([(134, 230), (134, 152)], arrow=True)
    for rank, (x, y) in enumerate(PLACES):
        foot = 97 if rank < 2 else 301
        picture.text(x + 118, foot, "rank {}", rank, look=f"bold middle words c{rank}")
        for chunk in range(4):
            left = x + 60 * chunk
            picture.box(left, y, 56, 40, "ground")
            dots(picture, left, y, {rank})
            for step, before in enumerate(states[:-1]):
                new = states[step + 1][rank][chunk] - before[rank][chunk]
                if new:
                    with picture.appears(FIRST + STEP * step + ARRIVES):
                        dots(picture, left, y, new)
    for step, chunks in enumerate(sends):
        start = FIRST + STEP * step
        for rank, chunk in enumerate(chunks):
            x, y = PLACES[rank]
            to_x, to_y = PLACES[(rank + 1) % 4]
            left = x + 60 * chunk
            with picture.travels(start, start + 2, to_x - x, to_y - y):
                picture.box(left, y, 56, 40, "moving")
                dots(picture, left, y, states[step][rank][chunk])
        what = "step {}: the receiver adds (reduce-scatter)"
        if step >= 3:
            what = "step {}: the receiver copies (all-gather)"
        with picture.travels(start, start + STEP):
            picture.text(MIDDLE, 66, what, step + 1, look="middle")
    picture.text(MIDDLE, 66, "steps 1 to 3 add, steps 4 to 6 copy", look="middle still")
    dot_means = "a dot or stripe: whose numbers a chunk contains"
    picture.text(MIDDLE, 334, dot_means, look="small middle")
    cell_means = "after each step: a row is a rank, a column a chunk"
    picture.text(MIDDLE, 358, cell_means, look="small middle")
    for step, state in enumerate(states):
        arrived = FIRST + STEP * (step - 1) + ARRIVES
        left = 20 + 82 * step
        with picture.lit(max(arrived, 0), arrived + STEP):
            panel(picture, left, 372, state)
            label = "{}" if step else "start"
            picture.text(left + 34, 460, label, step, look="small middle")
    description = picture.say(
        "Four ranks in a ring have four chunks each. In each step every rank sends one chunk to "
        "the next rank. In steps 1 to 3 the receiver adds it, so that each rank has one chunk with "
        "the numbers of all four ranks. In steps 4 to 6 these chunks are copied around the ring.",
    )
    return picture.svg(description, {"sends": sends})


def ring_states(sends: list[list[int]]) -> list[list[list[set]]]:
    """Before the first step and after each step: for each rank and chunk, whose numbers it has."""
    states = [[[{rank} for _ in range(4)] for rank in range(4)]]
    for sent in sends:
        before = states[-1]
        after = [list(chunks) for chunks in before]
        for rank, chunk in enumerate(sent):
            receiver = (rank + 1) % 4
            after[receiver][chunk] = before[receiver][chunk] | before[rank][chunk]
        states.append(after)
    return states


def dots(picture: Picture, x: float, y: float, sources: set[int]) -> None:
    """A dot for each rank whose numbers are in the chunk at x, y."""
    for source in sorted(sources):
        picture.dot(x + 10 + 12 * source, y + 20, 5, f"full c{source}")


def panel(picture: Picture, left: float, top: float, state: list[list[set]]) -> None:
    """All chunks of all ranks, small: a stripe for each rank whose numbers are in a chunk."""
    cells = []
    stripes = {source: [] for source in range(4)}
    for rank, chunks in enumerate(state):
        y = top + 17 * rank
        for chunk, sources in enumerate(chunks):
            x = left + 17 * chunk
            cells.append((x - 0.5, y - 0.5))
            for source in sources:
                stripes[source].append((x + 4 * source, y))
    for source, corners in stripes.items():
        picture.boxes(corners, 4, 16, f"full c{source}")
    picture.boxes(cells, 17, 17, "thin")


if __name__ == "__main__":
    main()
