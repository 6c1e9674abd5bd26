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


def badge(picture: Picture, x: float, y: float, step: int) -> None:
    """The number of a step in the list, at the thing that happens in this step."""
    picture.dot(x, y, 14, "paper")
    picture.text(x, y + 6.5, "{}", step, look="small bold middle")


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

    width = 536 / len(whole)
    for column in range(len(whole)):
        picture.box(44 + width * column, 124, width - 6, 248, "ground")
    picture.path([(24, height(0)), (580, height(0))], "dotted")
    picture.text(24, height(0) - 6, "0", look="small dim")
    for column, of_batch in enumerate(whole):
        x = 41 + width * (column + 0.5)
        mean = sum(shard[column] for shard in shards) / len(shards)
        with picture.appears(2.4):
            picture.dot(x, height(of_batch), 12, "line")
        for device, shard in enumerate(shards):
            y = height(shard[column])
            aside = width / 5 * (device - 1.5)  # so that marks of nearly equal values are all seen
            mark(picture, x + aside, y, device)
            with picture.travels(4, 5.8, -aside, height(mean) - y):
                mark(picture, x + aside, y, device)
        with picture.appears(5.4):
            picture.dot(x, height(mean), 6, "full mix")
    counted = (len(whole), f"{size:,}")
    picture.text(MIDDLE, 396, "the first {} of {} numbers of a gradient", *counted, look="middle")
    description = picture.say(
        "For each of {} numbers of the gradient, a column has four marks, next to one another, for "
        "the values of four shards. They differ. A circle shows the value of the whole batch. The "
        "average of the four marks lies in the circle each time.",
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
    picture = Picture("copies", "DataParallel: one process, a thread per GPU", 520, 19, words)
    picture.box(14, 54, 572, 56, "ground", round=8)
    picture.text(28, 89, "GPU 0", look="small bold")
    picture.labelled(226, 66, 176, 32, "paper small", "batch of {}", sum(images))
    chip(picture, 104, 66, "tint c0", "model")
    with picture.appears(3.4):
        chip(picture, 416, 66, "tint c1", "{} images", images[0])
    for device in (1, 2, 3):
        left = 14 + 196 * (device - 1)
        picture.box(left, 200, 180, 122, "ground", round=8)
        picture.text(left + 36, 228, "GPU {}", device, look="small bold")
    steps = [
        (0.6, 3.2, "replicate: GPU 0 copies the model to all"),
        (3.2, 5.8, "scatter: GPU 0 splits the batch"),
        (5.8, 8.4, "parallel apply: all GPUs compute"),
        (8.4, 11.4, "gather: the outputs come back to GPU 0"),
        (11.4, 14, "backward: GPU 0 sends gradients of the outputs"),
        (14, 18.4, "gradients of the weights come back, and add up"),
    ]
    ways = {1: "down", 2: "down", 4: "up", 5: "down", 6: "up"}  # of steps in which things are sent
    for step, (start, end, _) in enumerate(steps, start=1):
        with picture.lit(start, end):
            for left in (14, 210, 406):
                if step in ways:
                    place = list(ways).index(step)
                    x = left + 22 + 34 * place  # In each column the steps go from left to right.
                    ends = (114, 196) if ways[step] == "down" else (196, 114)
                    look = "line" if left == 14 else "thin"
                    picture.path([(x, ends[0]), (x, ends[1])], look, arrow=True)
                    if left == 14:  # The other columns have the same steps.
                        badge(picture, x, 155, step)
                else:
                    badge(picture, left + 130, 221, step)
            if step not in ways:
                badge(picture, 558, 82, step)
    for device in (1, 2, 3):
        x = 50 + 196 * (device - 1)
        late = 0.4 * (device - 1)  # seconds, so that they do not hide one another
        with picture.appears(0.8 + late, 104 - x, -176, takes=1.4):
            chip(picture, x, 242, "tint c0", "model")
        with picture.appears(3.4 + late, 260 - x, -214, takes=1.4):
            chip(picture, x, 280, "tint c1", "{} images", images[device])
        with picture.travels(8.6 + late, 10.4 + late, down=-214):
            chip(picture, x, 280, "full c2", "outputs")
        with picture.travels(11.4 + late, 13.2 + late, down=214):
            chip(picture, x, 66, "full c2", "gradients")
        with picture.travels(14.2 + late, 16 + late, down=-176):
            chip(picture, x, 242, "full c3", "gradients")
    with picture.travels(6.2, 8.4):  # All GPUs compute.
        picture.box(14, 54, 572, 56, "edge c2", round=8)
        for left in (14, 210, 406):
            picture.box(left, 200, 180, 122, "edge c2", round=8)
    list_of_steps(picture, 356, steps)
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
    with picture.appears(0.6):
        picture.path([(222, 90), (176, 133)], arrow=True)
        picture.path([(378, 90), (424, 133)], arrow=True)
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


def buckets(sent: list[dict], words: Words = None) -> str:
    """One backward pass as it was measured: the buckets are averaged while backward computes.

    sent: for each bucket its size in bytes, and the milliseconds at which each of its gradients is
    complete, at which it is sent, and at which its average is there.
    """
    over = max(max(bucket["complete"]) for bucket in sent)
    end = max(bucket["averaged"] for bucket in sent)
    left = 178
    scale = (416 - left) / end  # units of width of a millisecond
    pace = 8 / end  # seconds of the picture of a millisecond
    first = 0.6
    title = "Buckets travel while backward still runs"
    picture = Picture("buckets", title, 372, first + pace * end + 4, words)

    def x(milliseconds: float) -> float:
        return left + scale * milliseconds

    def at(milliseconds: float) -> float:
        return first + pace * milliseconds

    picture.text(left - 10, 110, "backward", look="small right")
    with picture.grows(first, at(over)):
        picture.box(left, 86, scale * over, 36, "full mix", round=3)
    # Marks of the same moment stand side by side: the next one ends at `free` or earlier.
    free = x(over)
    for place, bucket in reversed([*enumerate(sent)]):
        for moment in sorted(bucket["complete"], reverse=True):
            free = min(free, x(moment)) - 7
            with picture.appears(at(moment)):
                picture.box(free + 2, 62, 5, 22, f"full c{place}", round=0)
    for place, bucket in enumerate(sent):
        y = 140 + 48 * place
        begins = bucket["sent"]
        ends = bucket["averaged"]
        size = f"{bucket['size'] / 1000:.0f}"
        picture.text(left - 10, y + 25, "bucket {}: {} kB", place, size, look="small right")
        with picture.grows(at(begins), at(ends)):
            picture.box(x(begins), y, scale * (ends - begins), 36, f"full c{place}", round=3)
    with picture.appears(at(over)):
        picture.path([(x(over), 84), (x(over), 282)], "dotted")
    with picture.appears(at(end)):
        last = len(sent) - 1
        look = f"small bold words c{last}"
        picture.text(x(end) + 10, 165 + 48 * last, "exposed: {} ms", f"{end - over:.1f}", look=look)
    picture.path([(left, 290), (580, 290)], arrow=True)
    picture.text(left, 318, "0", look="small middle")
    picture.text(x(end), 318, "{} ms", f"{end:.0f}", look="small middle")
    picture.text(24, 352, "A mark is the moment at which a gradient is complete.", look="small dim")
    description = picture.say(
        "A backward pass of {} milliseconds. {} buckets of gradients are sent and averaged. Those "
        "that are full early are averaged while backward computes the next gradients. From {} "
        "milliseconds on all gradients are complete, and the rank waits: this part is exposed.",
        f"{end:.1f}",
        len(sent),
        f"{over:.1f}",
    )
    return picture.svg(description, {"sent": sent})


# ---------------------------------------------------------------- stage 4


def launch(environments: list[dict[str, str]], words: Words = None) -> str:
    """Who starts whom: torchrun, two ranks, the store, and the connection between the ranks.

    environments: RANK, LOCAL_RANK and WORLD_SIZE of each rank.
    """
    picture = Picture("launch", "torchrun runs the whole script in each rank", 520, 18, words)
    steps = [
        (0.6, 3.2, "torchrun starts a store and both ranks"),
        (3.2, 5.8, "it tells each rank its numbers"),
        (5.8, 9.8, "the ranks exchange addresses in the store"),
        (9.8, 13, "then they exchange gradients directly"),
        (13, 17.6, "torchrun watches: if one fails, it stops all"),
    ]
    lights = [(start, end) for start, end, _ in steps]
    command = "torchrun --standalone --nproc-per-node 2 minimal.py"
    picture.labelled(24, 52, 552, 44, "ground small", command)
    picture.labelled(246, 148, 108, 36, "ground small", "store")
    with picture.lit(*lights[0]):
        picture.path([(MIDDLE, 98), (MIDDLE, 144)], arrow=True)
        badge(picture, MIDDLE, 118, 1)
    for rank, own in enumerate(environments):
        color = f"c{rank}"
        left = (24, 366)[rank]
        center = left + 105
        start = (180, 420)[rank]  # of the arrow from torchrun
        inner = (196, 404)[rank]  # near the side of the box that is next to the other rank
        outer = (48, 552)[rank]  # near the other side
        store = (252, 348)[rank]  # the corner of the store
        with picture.appears(1.4):
            with picture.lit(*lights[0]):
                picture.path([(start, 98), (center, 226)], arrow=True)
                badge(picture, (start + center) / 2, 162, 1)
            picture.box(left, 230, 210, 122, f"tint {color}", round=8)
            picture.text(left + 14, 258, "minimal.py", look="bold")
        with picture.travels(3.4, 5, center - start, 152):
            sent(picture, start, 78, color, "RANK={}", own["RANK"])
        with picture.appears(4.8):
            picture.text(left + 14, 286, "RANK={}", own["RANK"], look="small")
            picture.text(left + 14, 311, "LOCAL_RANK={}", own["LOCAL_RANK"], look="small")
            picture.text(left + 14, 336, "WORLD_SIZE={}", own["WORLD_SIZE"], look="small")
            with picture.lit(*lights[1]):
                badge(picture, left + 188, 304, 2)
        with picture.appears(6):
            with picture.lit(*lights[2]):
                picture.path([(inner, 228), (store, 186)], "dotted")
                badge(picture, (inner + store) / 2, 207, 3)
        with picture.travels(6.2, 7.8, MIDDLE - inner, -60):
            sent(picture, inner, 210, color, "address")
        with picture.travels(8, 9.6, inner - MIDDLE, 60):
            sent(picture, MIDDLE, 150, f"c{1 - rank}", "address")
        with picture.appears(13):
            picture.path([(outer, 98), (outer, 228)], "dotted")
            badge(picture, outer, 162, 5)
    with picture.appears(10):
        with picture.lit(*lights[3]):
            badge(picture, MIDDLE, 250, 4)
            picture.text(MIDDLE, 288, "gradients", look="small middle")
            picture.path([(238, 302), (360, 302)], arrow=True)
            picture.path([(362, 328), (240, 328)], arrow=True)
    with picture.travels(10.6, 12.4, across=90):
        picture.dot(255, 302, 8, "full c0")
    with picture.travels(10.6, 12.4, across=-90):
        picture.dot(345, 328, 8, "full c1")
    list_of_steps(picture, 384, steps)
    description = picture.say(
        "torchrun starts a store, and minimal.py in two processes. It tells each its RANK, "
        "LOCAL_RANK and WORLD_SIZE. The ranks write their addresses to the store, and read the "
        "address of the other rank there. Then they send gradients to each other directly. "
        "torchrun watches the processes.",
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
STOPS = {"hangs": 7.3, "raises": 2.9, "exits early": 5.3, "is killed": 2.9}
SEEN = 0.5  # units of time from a failure until torchrun stops all
FAILS = 2.4  # The unit of time in which the first rank fails. It is the same in all cases.
LANES = {  # by the way to fail: the rank that fails, and the other one
    "hangs": (Lane(FAILS, "hangs"), Lane(3.6, "waits", "timeout")),
    "raises": (Lane(FAILS, says="ValueError"), Lane(2.9)),
    "exits early": (Lane(FAILS, says="exit code 0"), Lane(4.8, says="connection closed")),
    "is killed": (Lane(FAILS, says="SIGKILL"), Lane(2.9)),
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
    picture.path([(358, 482), (358, 506)], "dotted")
    picture.text(370, 501, "torchrun stops all", look="small")
    wrong = [case for case, (failed, _, named) in cases.items() if failed != named]
    description = picture.say(
        "Four runs of two ranks. In each, one rank fails first while the other one computes, and "
        "torchrun's report names one. In the cases {} it names a rank that did not fail first.",
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
    with picture.appears(computed - 0.6):
        middle = 100 + UNIT * lane.computes / 2
        picture.text(middle, y + 20, "computes", look="small middle inverse")
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
            picture.text(28, top + 70, "node {}", node, look="bold")
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


def lost_node(rank_0: list[str], words: Words = None) -> str:
    """A node is lost in the second epoch. Both nodes resume from the snapshot of the first one.

    rank_0: the node that has rank 0 in epoch 1, and the one that has it in epoch 2.
    """
    picture = Picture("lost_node", "A node is lost, and the run resumes", 296, 12, words)
    picture.text(14, 70, "epoch 1", look="small")
    picture.text(128, 70, "epoch 2", look="small")
    picture.text(586, 70, "epoch 2 again", look="small right")
    rows = {"other node": (114, 112), "lost node": (206, 96)}
    for node, (y, lasts) in rows.items():  # lasts: the width of what is discarded
        first = rank_0[0] != node
        then = rank_0[1] != node
        picture.text(14, y - 8, node, look="small")
        with picture.grows(0.4, 2.4):
            picture.box(14, y, 96, 38, f"full c{first:d}", round=3)
        with picture.appears(1.6):
            picture.text(62, y + 26, "rank {}", f"{first:d}", look="small middle inverse")
        with picture.grows(2.8, 2.8 + lasts / 70):
            picture.box(126, y + 1, lasts, 36, f"tint c{first:d}", round=3)
        with picture.appears(5.4):
            picture.text(126 + lasts / 2, y + 26, "discarded", look="small middle")
        with picture.grows(8.4, 10.4):
            picture.box(510, y, 76, 38, f"full c{then:d}", round=3)
        with picture.appears(9.6):
            picture.text(548, y + 26, "rank {}", f"{then:d}", look="small middle inverse")
    with picture.appears(2.6):
        picture.path([(118, 58), (118, 254)], "dotted")
        picture.text(118, 278, "snapshot", look="small middle")
    with picture.appears(4.2):
        cross(picture, 228, 219)
        picture.text(248, 232, "killed", look="small")
    with picture.appears(4.8):
        cross(picture, 244, 127)
        picture.text(244, 106, "connection closed", look="small")
    with picture.grows(5.4, 8):
        picture.box(262, 115, 232, 36, "edge mix", round=3)
    with picture.appears(7.8):
        picture.text(378, 140, "waits for a second node", look="small middle")
    with picture.appears(7):
        picture.text(494, 232, "started again", look="small right")
    with picture.appears(8):
        picture.path([(502, 82), (502, 254)], "dotted")
        picture.text(586, 278, "both resume after epoch 1", look="small right")
    description = picture.say(
        "Two nodes over time. After epoch 1 the snapshot is written. In epoch 2 a node is killed. "
        "The other node finds its connection closed, and waits until the lost one is started "
        "again. Then both resume from the snapshot. What they had done of epoch 2 is discarded. "
        "Rank 0 is first on the {}, and then on the {}.",
        *[picture.say(node) for node in rank_0],
    )
    return picture.svg(description, {"rank_0": rank_0})


def ring(sends: list[list[int]], words: Words = None) -> str:
    """A ring all-reduce of four ranks: whose numbers each chunk contains, step by step.

    sends: for each step, the chunk that each rank sends to the next one. In the first three steps
    the receiver adds the chunk to its own, and in the last three the chunk replaces its own.
    """
    seconds = FIRST + STEP * len(sends) + 3
    picture = Picture("ring", "Ring all-reduce: four ranks, six steps", 508, seconds, words)
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
                    # Without motion the large chunks are those after step 1.
                    arrives = FIRST + STEP * step + ARRIVES
                    with picture.appears(arrives, still=step == 0):
                        dots(picture, left, y, new)
                    if step == 0:
                        picture.box(left, y, 56, 40, "edge mix still")
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
    picture.text(MIDDLE, 66, "after step 1: each rank has added one chunk", look="middle still")
    dot_means = "a dot or stripe: whose numbers a chunk contains"
    picture.text(MIDDLE, 334, dot_means, look="small middle")
    cell_means = "below: a row is a rank, a column a chunk"
    picture.text(MIDDLE, 358, cell_means, look="small middle")
    for place, step in enumerate((0, 3, 6)):
        arrived = FIRST + STEP * (step - 1) + ARRIVES
        left = 22 + 204 * place
        with picture.lit(max(arrived, 0), arrived + 3 * STEP):
            panel(picture, left, 374, states[step])
            label = "after step {}" if step else "start"
            picture.text(left + 74, 494, label, step, look="small middle")
    description = picture.say(
        "Four ranks in a ring have four chunks each. In each step every rank sends one chunk to "
        "the next rank. In steps 1 to 3 the receiver adds it, so that each rank has one chunk with "
        "the numbers of all four ranks. In steps 4 to 6 these chunks are copied around the ring. "
        "Three squares show the chunks of all ranks at the start, after step 3 and after step 6.",
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
        y = top + 25 * rank
        for chunk, sources in enumerate(chunks):
            x = left + 37 * chunk
            cells.append((x - 0.5, y - 0.5))
            for source in sources:
                stripes[source].append((x + 2 + 8 * source, y + 2))
    for source, corners in stripes.items():
        picture.boxes(corners, 8, 20, f"full c{source}")
    picture.boxes(cells, 37, 25, "thin")


if __name__ == "__main__":
    main()
