"""Which line leads to the line in which a mistake shows?"""

from types import SimpleNamespace

import pytest
from ddp_doctor.check import changed, data, files, order, repeated, source, values

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
def write_script(tmp_path, monkeypatch):
    """A function that writes a script into the working folder, where it is looked up."""
    monkeypatch.chdir(tmp_path)

    def write(text, name="train.py"):
        (tmp_path / name).write_text(text)
        source.tree_of.cache_clear()

    return write


@pytest.fixture
def number(write_script):
    """The line of the script that has these words for the n-th time."""
    write_script(SCRIPT)

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


def test_the_line_that_made_a_value(write_script):
    write_script(VALUES, "values.py")

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
    assert changed.guarded_change(files) == line("if rank == 0")
    assert values.result_line("values.py:22") == line("return right")
    assert order.unordered(files) == line("set(text)")
    inside = [line("loss = cross"), line("train(network")]
    assert values.decision(inside, [line("dist.barrier")]) == line("score = evaluate")


def test_ddp_that_is_called_on_gpus_only(number, write_script):
    assert source.wraps_on_gpus_only({"train.py"}) == ""  # two of the calls are made in any case
    head = SCRIPT[: SCRIPT.index("    if args.gpu")]
    write_script(head)
    assert source.wraps_on_gpus_only({"train.py"}) == number("if torch.cuda")


TRAINER = """
DEFAULTS = {"width": 8}


class Parts:
    def __init__(self, count, rank, per_rank=4):
        self.rank = rank
        self.per_rank = per_rank

    def __iter__(self):
        order = torch.randperm(8, generator=torch.Generator().manual_seed(3))
        first = self.rank * self.per_rank
        return iter(order[first : first + self.per_rank])


class Trainer:
    def __init__(self, world_size, rate=0.1):
        self.rate = scaled(rate, world_size)
        self.noise = torch.Generator()
        self.noise.manual_seed(5)
        self.ddp = DDP(Net(DEFAULTS["width"]))
        init_head(self.ddp.module)
        self.optimizer = SGD(self.ddp.parameters(), lr=self.rate)

    def fit(self):
        loss = self.loss_of(x + torch.randn(8, generator=self.noise))
        loss.backward()
        for p in self.ddp.parameters():
            p.grad.mul_(1 + self.noise_of_rank)
        if loss.item() < 3:
            self.optimizer.step()
        codes = self.ddp.module.codebook
        codes.data.copy_(means)

    def loss_of(self, x):
        losses = cross_entropy(self.ddp(x), y, reduction="none")
        return (losses * mask).sum() / mask.sum()


def scaled(rate, world_size):
    return rate * world_size


def init_head(model):
    nn.init.normal_(model.head.weight)


mine = data[rank::world_size]
loader = DataLoader(TensorDataset(mine), **dict(batch_size=args.batch_size))
parser.add_argument("--batch-size", default=32 // world_size)
seen = set(names)
seen.add("other")
vocabulary = {name: i for i, name in enumerate(seen)}
"""


@pytest.fixture
def line(write_script):
    """The line of TRAINER that has these words."""
    write_script(TRAINER, "trainer.py")

    def number(words):
        [found] = [i for i, text in enumerate(TRAINER.splitlines(), 1) if words in text]
        return f"trainer.py:{found}"

    return number


def test_a_value_through_attributes_helpers_and_defaults(line):
    files = {"trainer.py"}
    rate = values.rate_of(line("SGD"))
    assert values.times_world(rate) == 1
    assert values.line_made(rate) == line("self.rate = scaled")
    assert values.loss_line(line("loss.backward"), files) == line("return (losses")
    batch = values.argument_of(line("TensorDataset"), ("DataLoader",), 1, "batch_size")
    assert values.over_world(batch)
    assert values.line_made(batch) == line("add_argument")
    width = values.argument_of(line("Net("), ("Net",), 0)
    assert values.line_made(width) == line('{"width"')


def test_the_line_with_the_part_of_a_rank(line):
    files = {"trainer.py"}
    data = values.argument_of(line("TensorDataset"), ("DataLoader",), 0, "dataset")
    assert order.line_with_rank(data) == line("data[rank::")
    assert order.part_in_class(line("__iter__")) == line("first = ")
    assert order.giving_line(line("__iter__")) == line("return iter")
    assert order.seed_in_class(line("__iter__")) == line("manual_seed(3)")
    assert order.unordered(files) == line("enumerate(seen)")
    assert order.makes_noise("self.noise", files)
    assert order.line_of_generator("self.noise", files) == line("manual_seed(5)")


DRAWN = {  # a script -> which line has the seed, and which common generators draw
    """
rng = np.random.default_rng(3)
for step in range(9):
    model(torch.as_tensor(rng.normal(size=8)))
""": (2, set()),
    """
def collect(env):
    return env.step(Categorical(logits=policy(env.state)).sample())
env = Env()
for step in range(9):
    batch = collect(env)
    for rows in torch.randperm(64).split(8):
        model(batch[rows])
""": (0, {"torch"}),
    """
env = gymnasium.make("CartPole-v1")
seen, _ = env.reset(seed=args.seed)
for step in range(9):
    seen = env.step(Categorical(logits=policy(seen)).sample())
    model(seen)
""": (3, {"torch"}),
    """
class Env:
    def __init__(self, seed):
        self.rng = random.Random(seed)
    def observe(self):
        return self.rng.gauss(0, 1)
env = Env(args.seed)
for step in range(9):
    model(env.observe())
""": (7, set()),
    """
rng = np.random.default_rng(seed + rank)
for step in range(9):
    model(torch.randn(8) + rng.normal())
""": (0, {"torch"}),
    """
for order in torch.randperm(64).split(8):
    model(data[order] + torch.randn(8))
""": (0, set()),
    """
x = torch.randn(64, generator=torch.Generator().manual_seed(0))
for rows in x.split(8):
    model(rows)
""": (0, set()),
    """
for step in range(9):
    x = numpy.random.randint(0, 9, size=8)
    model(x)
""": (0, {"numpy"}),
}


@pytest.mark.parametrize("text", DRAWN)
def test_the_seed_of_data_that_the_script_draws(text, write_script):
    write_script(text)
    numbers = [n for n, code in enumerate(text.splitlines(), 1) if "model(" in code]
    number, common = DRAWN[text]
    seed = f"train.py:{number}" if number else ""
    assert order.draws_in_loop([f"train.py:{numbers[-1]}"], {"train.py"}) == (seed, common)


NOISES = {  # draws of a generator -> are they noise?
    "x + rng.normal(size=8), rng.integers(0, 4)": True,
    "x + rng.normal(size=8), rng.choice([0, 1])": True,
    "x + rng.normal(size=8), rng.integers(len(x))": False,
    "x + rng.normal(size=8), rng.permutation(8)": False,
    "x + rng.normal(size=8), rng.integers(0, 99, 8)[rank::world]": False,
    "rng.integers(0, 4)": False,
}


@pytest.mark.parametrize("text", NOISES)
def test_a_generator_that_makes_noise_or_chooses_samples(text, write_script):
    write_script(text)
    assert order.makes_noise("self.rng", {"train.py"}) == NOISES[text]


def test_samples_that_are_drawn_with_replacement():
    assert data.is_drawn_again([SimpleNamespace(indices=[3, 3, 5, 3])])
    assert not data.is_drawn_again([SimpleNamespace(indices=[3, 4, 5, 6])])


AVERAGES = {  # how weights are averaged -> the line that leaves the buffers out
    """
for p in model.parameters():
    dist.all_reduce(p.data)
""": 2,
    """
def mean(tensor):
    dist.all_reduce(tensor)
weights = list(model.parameters())
for p in weights:
    mean(p.data)
""": 5,
    """
flat = parameters_to_vector(model.parameters())
dist.all_reduce(flat)
vector_to_parameters(flat / world, model.parameters())
""": 2,
    """
for p in model.parameters():
    dist.all_reduce(p.grad)
""": 0,
    """
for p in chain(model.parameters(), model.buffers()):
    dist.all_reduce(p)
""": 0,
    """
optimizer = SGD(model.parameters())
for x in data:
    dist.all_reduce(loss)
""": 0,
}


@pytest.mark.parametrize("text", AVERAGES)
def test_an_average_that_leaves_the_buffers_out(text, write_script):
    write_script(text)
    number = AVERAGES[text]
    found = changed.average_without_buffers({"train.py"})
    assert found == (f"train.py:{number}" if number else "")


FURTHER = {  # a second model -> the line that makes it with random weights
    """
target = nn.Sequential(nn.Linear(8, 8)).eval()
goal = target(x)
""": 2,
    """
target = Net()
target.load_state_dict(torch.load("target.pt"))
goal = target(x)
""": 0,
    """
target = deepcopy(model)
goal = target(x)
""": 0,
    """
target = Net()
student = DDP(Net())
loss_of = nn.MSELoss()
loss = loss_of(student(x), target(x))
""": 2,
}


@pytest.mark.parametrize("text", FURTHER)
def test_the_line_that_makes_a_second_model(text, write_script):
    write_script(text)
    last = f"train.py:{len(text.splitlines())}"
    found = values.further_model_made(last)
    assert found == (f"train.py:{FURTHER[text]}" if FURTHER[text] else "")


def test_the_line_that_changes_weights_or_gradients(line):
    files = {"trainer.py"}
    assert changed.changed_by_name(["net.codebook"], files) == line("copy_(means)")
    assert changed.changed_gradient(files) == line("p.grad.mul_")
    assert changed.initialised_late(line("DDP("), files) == line("    init_head(self")
    assert changed.condition_around(line("optimizer.step")) == line("if loss.item")


BATCH_OF_ALL = """
parser.add_argument("--total-batch-size", type=int, default=64)
parser.add_argument("--eval-batch-size", type=int, default=64)
args = parser.parse_args()
arguments = TrainingArguments(
    output_dir="out",
    per_device_train_batch_size=args.total_batch_size,
    per_device_eval_batch_size=args.eval_batch_size,
)
"""


def test_the_line_that_gives_a_flag_as_the_batch_of_each_rank(write_script):
    write_script(BATCH_OF_ALL)
    assert values.batch_given("train.py:2", {"train.py"}) == "train.py:7"
    assert values.batch_given("train.py:3", {"train.py"}) == ""


SYNC = """
def train_epoch(fabric, model, ddp, loader):
    for step, x in enumerate(loader):
        accumulating = step % 4 != 0
        with fabric.no_backward_sync(model, enabled=accumulating):
            fabric.backward(model(x))
        with fabric.no_backward_sync(model, enabled=step % 4 != 0):
            fabric.backward(model(x))
        with ddp.no_sync() if accumulating else nullcontext():
            ddp(x).backward()
        context = nullcontext() if step % 4 == 0 else fabric.no_sync(model)
        with context:
            fabric.backward(model(x))
        with context_of(fabric, model, accumulating):
            fabric.backward(model(x))


def context_of(fabric, model, accumulating):
    if accumulating:
        context = fabric.no_backward_sync(model)
    else:
        context = nullcontext()
    return context
"""


def test_the_condition_of_no_backward_sync_by_its_name(write_script):
    write_script(SYNC)
    assert values.condition_made("train.py:5") == "train.py:4"
    assert values.condition_made("train.py:7") == ""
    assert values.condition_made("train.py:9") == ""
    assert values.condition_made("") == ""
    assert values.context_made("train.py:12") == "train.py:11"
    assert values.context_made("train.py:14") == "train.py:20"
    assert values.context_made("train.py:9") == "train.py:9"
    assert values.context_made("") == ""


RATE = """
def step(self):
    self.tokens += count(words)
    self.calls += 1
    if self.tokens < 10:
        rate = self.tokens / 10
    else:
        rate = 1 / self.calls
    for group in self.optimizer.param_groups:
        group["lr"] = rate
    self.lr = 0.1
"""


def test_the_count_from_which_a_rate_follows(write_script):
    write_script(RATE)
    assert source.entry_assigned("lr", {"train.py"}) == "train.py:10"
    assert values.running_count("train.py:10") == "train.py:3"
    assert values.running_count("train.py:11") == ""


PARTS = """
def subsets(data, pacing, path):
    count = int(len(data) * pacing.share)
    grown = Subset(data, data.order[:count])
    order = torch.randperm(len(data)).tolist()
    drawn = Subset(data, order[:80])
    mine = Subset(data, range(rank, len(data), world_size))
    return grown, drawn, mine


class Job:
    def __init__(self):
        self.train = self.loader(self.rows(True), shuffle=True)
        self.tests = self.loader(self.rows(False))

    def loader(self, data, shuffle=False):
        return DataLoader(data, 8, shuffle=shuffle)

    def rows(self, train):
        if not train:
            return Rows("test")
        return Rows("train", shard=(self.rank, self.world_size))


trainer = Trainer(**{"train_dataset": Rows("train", world_size, rank)})
"""


def test_the_line_by_which_the_ranks_have_other_data(write_script):
    write_script(PARTS, "parts.py")
    files = {"parts.py"}
    assert order.line_of_subset("parts.py:4", False, files) == ("share", "parts.py:3")
    assert order.line_of_subset("parts.py:6", True, files) == ("drawn", "parts.py:5")
    assert order.line_of_subset("parts.py:7", False, files) == ("part", "parts.py:7")
    # Two lines call the helper that makes a loader, and the run knows which one has led to it.
    began = SimpleNamespace(made="parts.py:17", made_from=["parts.py:13"])
    assert order.divides_by_rank(order.data_of_loader(began)) == "parts.py:22"
    began = SimpleNamespace(made="parts.py:17", made_from=["parts.py:14"])
    assert values.line_made(order.data_of_loader(began)) == "parts.py:14"
    given = values.only_keyword("train_dataset", files)
    assert order.divides_by_rank(given) == "parts.py:25"


STREAM = """
class Stream:
    def __iter__(self):
        info = get_worker_info()
        mine = self.shards
        if info is not None:
            mine = self.shards[info.id :: info.num_workers]
        for shard in mine:
            yield from shard


class Whole:
    def __iter__(self):
        shards = sorted(self.shards)
        for number, shard in enumerate(shards):
            if number % workers == worker:
                yield shard


class Order:
    def __iter__(self):
        order = np.random.permutation(self.count)
        yield from order[self.rank :: self.ranks]


class Seeded:
    def __iter__(self):
        torch.manual_seed(self.epoch)
        yield from torch.randperm(self.count)[self.rank :: self.ranks]


class Model:
    def on_validation_epoch_end(self):
        flags, truth = torch.cat(self.flags), torch.cat(self.truth)
        right = (flags * truth).sum()
        precision = right / flags.sum()
        self.log("precision", precision)
        speed = self.count / self.seconds
        loss = self.loss / self.count
        self.log("loss", loss)
"""


def test_the_part_of_a_stream_an_order_and_a_result(write_script):
    write_script(STREAM, "stream.py")
    assert data.loop_of_stream("stream.py:3") == "stream.py:7"
    assert data.loop_of_stream("stream.py:13") == "stream.py:15"
    assert order.drawn_order(SimpleNamespace(order_by="stream.py:21"), []) == "stream.py:22"
    assert order.drawn_order(SimpleNamespace(order_by="stream.py:27"), []) == ""
    assert values.result_shown("stream.py:37") == "stream.py:34"
    assert values.result_shown("stream.py:40") == "stream.py:39"
    assert values.result_shown("stream.py:22") == ""


RACE = """
def prepare(path):
    if rank == 0:
        write(path)
    else:
        while not path.exists():
            sleep(1)
    return read(path)


def write(path):
    torch.save(rows, path)


def read(path):
    return torch.load(path)


def cached(path):
    if not path.exists():
        write(path)
    return read(path)
"""


def test_the_line_that_should_wait_for_a_file(write_script):
    write_script(RACE, "race.py")

    def event(*numbers):
        first, *others = [f"race.py:{number}" for number in numbers]
        return SimpleNamespace(at=first, called_from=others)

    assert files.creation(event(12, 4)) == ""  # only rank 0 comes to it
    assert files.place_to_wait(event(16, 8), event(12, 4)) == "race.py:8"
    assert files.creation(event(12, 21)) == "race.py:20"


SUMS = """
def mean_of_ranks(value):
    ranks = dist.get_world_size()
    dist.all_reduce(value)
    return value / ranks


def error(loader):
    dist.all_reduce(total)
    return total / len(loader.dataset)


def reduced(fabric, accelerator):
    fabric.all_reduce(total)
    fabric.all_reduce(total, reduce_op="sum")
    accelerator.reduce(total)
    accelerator.reduce(total, reduction="mean")
"""


def test_a_sum_that_is_divided_by_the_number_of_ranks(write_script):
    write_script(SUMS, "sums.py")
    assert [n for n in range(1, 18) if repeated.adds_up(f"sums.py:{n}")] == [4, 9, 15, 16]
    assert repeated.over_world("sums.py:4")
    assert not repeated.over_world("sums.py:9")


@pytest.mark.parametrize(
    ("generator", "line"),
    [("default_rng()", 3), ("default_rng(rank)", 3), ("default_rng(8)", None)],
)
def test_an_order_by_a_generator_with_one_seed_is_the_same_on_all_ranks(
    write_script, generator, line
):
    script = f"import numpy as np\nrng = np.random.{generator}\norder = rng.permutation(10)\n"
    write_script(script)
    assert order.shuffled(["train.py"]) == (f"train.py:{line}" if line else "")
