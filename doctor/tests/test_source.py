"""Which line leads to the line in which a mistake shows?"""

import pytest
from ddp_doctor.check import source, values

SCRIPT = """
def main():
    if rank == 0:
        evaluate(model)
    score = evaluate(model) if is_main_process() else None
    if epoch > 3:
        if step % 10 == 0:
            evaluate(model)
    for epoch in range(3):
        train_epoch()
        if args.local_rank != 0:
            continue
        save(model)


def train_epoch():
    for x in loader:
        step(x)
    model.require_backward_grad_sync = False


def evaluate(model):
    model(x)


def wrap(model):
    if torch.cuda.is_available():
        model = DDP(model)
    if args.gpu is None:
        model = nn.parallel.DistributedDataParallel(model)
    else:
        model = nn.parallel.DistributedDataParallel(model, [args.gpu])
"""


@pytest.fixture
def number(tmp_path, monkeypatch):
    """The line of the script that has these words for the n-th time."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    source.tree_of.cache_clear()

    def line(words, n=0):
        found = [i for i, text in enumerate(SCRIPT.splitlines(), 1) if words in text]
        return f"train.py:{found[n]}"

    return line


def test_the_if_by_the_rank_around_a_line(number):
    assert source.guard_of([number("evaluate(model)", 0)]) == number("if rank == 0")
    assert source.guard_of([number("if is_main_process")]) == number("if is_main_process")
    assert source.guard_of([number("evaluate(model)", 2)]) == ""
    assert source.guard_of([number("save(model)")]) == number("local_rank")
    inside = [number("model(x)", -1), number("evaluate(model)", 0)]
    assert source.guard_of(inside) == number("if rank == 0")
    assert source.guard_of(["?", "no_such_file.py:3"]) == ""


def test_the_loop_around_a_line(number):
    lines = [number("for x in loader"), number("train_epoch()")]
    assert source.loop_around(lines) == number("for epoch in")
    assert source.loop_around(lines[:1]) == ""


def test_an_attribute_that_one_line_sets(number):
    assert source.assignment_of("require_backward_grad_sync", {"train.py"}) == number("grad_sync")


VALUES = """
def train(model, loader, chief, ema):
    world_size = dist.get_world_size()
    rate = args.lr
    rate *= world_size
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for epoch in range(9):
        for x, y in loader:
            loss = cross_entropy(model(x), y)
            scaler.scale(loss / 4).backward()
        if rank == 0:
            update(ema, model)
        score = evaluate(model, loader)
        if score < best:
            bad += 1
        if bad > 3:
            break
    dist.barrier()


def evaluate(model, loader):
    for x, y in loader:
        right += 1
    return right / len(loader)


def update(ema, model):
    for a, b in zip(ema.parameters(), model.parameters()):
        a.lerp_(b, 0.1)


network = Network()
train(network, DataLoader(Texts(), batch_size=args.batch // world_size), True, None)
words = {word: i for i, word in enumerate(set(text))}
files = sorted(os.listdir(folder))
"""


def test_the_line_that_made_a_value(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "values.py").write_text(VALUES)

    def line(words):
        [number] = [i for i, text in enumerate(VALUES.splitlines(), 1) if words in text]
        return f"values.py:{number}"

    files = {"values.py"}
    optimizer = line("SGD")
    rate = values.rate_of(optimizer)
    batch = values.argument_of(line("train(network"), ("DataLoader",), 1, "batch_size")
    assert values.loss_line(line("backward()"), files) == line("loss = cross")
    assert values.model_made(optimizer) == line("network = Network")
    assert values.line_made(rate) == line("rate *=")
    assert values.times_world(rate) == 1 and values.over_world(batch)
    assert values.guarded_change(files) == line("if rank == 0")
    assert values.result_line("values.py:22") == line("return right")
    assert values.unordered(files) == line("set(text)")
    inside = [line("loss = cross"), line("train(network")]
    assert values.decision(inside, [line("dist.barrier")]) == line("score = evaluate")


def test_ddp_that_is_called_on_gpus_only(number, tmp_path):
    assert source.wraps_on_gpus_only({"train.py"}) == ""  # two of the calls are made in any case
    head = SCRIPT[: SCRIPT.index("    if args.gpu")]
    (tmp_path / "train.py").write_text(head)
    source.tree_of.cache_clear()
    assert source.wraps_on_gpus_only({"train.py"}) == number("if torch.cuda")
