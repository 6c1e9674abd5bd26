"""The events: everything that a watched process can say about itself.

A watcher constructs an event, and watch/note.py appends it to the file of its process. read()
brings the files back. Nothing else passes from a watched process to the judges. Nobody changes an
event: what is concluded from events is something new (run.py).

`at` is a line of the reader's own code, as "file:line". A fingerprint is an integer, equal for two
tensors if their bits are equal; -1 stands for a tensor that cannot be compared.
"""

import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Moment:
    """When an event happened, on the rank on which it happened."""

    time: float  # seconds; all processes of a machine share this clock
    step: int  # optimizer steps that had begun before
    passes: int  # backward passes that had begun before


# Each process makes all these classes when it starts, so they get only an __init__() of their own.
kind_of_event = dataclass(eq=False, repr=False)


@kind_of_event
class Event:
    when: Moment

    def __eq__(self, other):
        return type(self) is type(other) and vars(self) == vars(other)

    def __repr__(self):
        return f"{type(self).__name__}({vars(self)})"


# ------------------------------------------------------------------ the process and its group


@kind_of_event
class Joined(Event):
    """The process has joined the default group."""

    at: str
    rank: int
    world: int  # number of ranks


@kind_of_event
class Destroyed(Event):
    """The script has destroyed the default group."""


@kind_of_event
class Raised(Event):
    """The script ends by an exception. `at` is the innermost line of the reader's code."""

    at: str
    error: str


@kind_of_event
class Refused(Event):
    """The script's parser of arguments has ended it."""

    error: str


@kind_of_event
class Ended(Event):
    """The process has reached its end. A killed process does not say this."""


@kind_of_event
class Totals(Event):
    """At the end: how much did this process do?"""

    steps: int  # of optimizers that have parameters which DDP averages
    averaged: int  # backward passes in which DDP averaged


@kind_of_event
class Later(Event):
    """A value that was still on a GPU when its event was written. read() puts it there."""

    of: str  # the event's kind
    number: int  # how many events of this kind were there, with it?
    field: str
    value: object


@kind_of_event
class Unseen(Event):
    """Something was left out on purpose, because the run is long."""

    what: str
    why: str


@kind_of_event
class Failed(Event):
    """A watcher failed, so something was not seen. The script was not disturbed."""

    module: str  # of the watcher, as steps
    watcher: str  # its function
    error: str


# ------------------------------------------------------------------ what may wait for other ranks


@kind_of_event
class Joining(Event):
    """The process calls init_process_group. It waits until Returned."""

    at: str


@kind_of_event
class Collective(Event):
    """The script calls a function of torch.distributed. The rank waits until Returned."""

    at: str
    op: str  # the function's name
    called_from: list[str]  # the lines that led to `at`, the nearest first
    functions: list[str]  # the script's functions that led to it, by the lines of their definitions
    numel: int  # numbers in the tensor, 0 if there is none
    whole_group: bool  # False: a group that the script has made
    about: dict[str, str]  # words in the variables of loops and the parameters around the call
    by_torch: bool  # called by PyTorch itself, as ZeroRedundancyOptimizer does
    trimmed: bool  # called by Accelerate's gather_for_metrics, which cuts off what is double
    decides: bool  # Lightning decides together, Accelerate sends random states: no result is sent
    of_training: bool  # called by Lightning for what the training has logged
    sums: bool  # it adds up, as all_reduce does by default
    values: list[float]  # of a tensor or an object with a few numbers, in an evaluation
    given: int = 0  # rows of the tensor that this rank gives, or entries of its object


@kind_of_event
class Forward(Event):
    """The forward pass of a DDP object begins. It may broadcast buffers: the rank may wait."""

    at: str
    training: bool  # in train mode and with gradients
    samples: int  # the first dimension of the first tensor
    inputs: int  # fingerprint of the first tensor in a step's first pass, otherwise -1
    sends: bool = False  # it broadcasts buffers
    called_from: list[str] = field(default_factory=list)  # when `at` is new: see Collective


@kind_of_event
class Backward(Event):
    """A backward pass begins. If `averages`, DDP averages gradients in it, and the rank waits."""

    at: str
    averages: bool
    loss: float | None  # its value, None if it is no single number
    factor: float | None  # loss / 4 has 0.25; None: a factor that is not known
    mean: bool  # below this factor the loss is a mean
    targets: float | None  # numbers that this mean is over, None if the graph does not show it
    scaled: bool  # a GradScaler multiplied it; `loss` and `factor` are without that
    no_sync: str = ""  # the line that called DDP's no_sync() last, if this pass does not average
    called_from: list[str] = field(default_factory=list)  # when `at` is new: see Collective
    models: list[int] = field(default_factory=list)  # of DDP that computed since the pass before
    cleared: bool = False  # gradients were cleared since the pass before
    terms: list[float] = field(default_factory=list)  # `targets` of each term of a sum, 0: unknown


@kind_of_event
class Returned(Event):
    """What the rank waited for is over. `inside`: the call in which it still is."""

    op: str
    inside: str | None


# ------------------------------------------------------------------ the step


@kind_of_event
class Wrapped(Event):
    """A model was wrapped by DDP."""

    at: str
    ranks: list[int]  # that average their gradients with each other
    buffers: bool = True  # DDP sends rank 0's buffers before it computes


@kind_of_event
class Restored(Event):
    """load_state_dict() gives a model other weights."""

    at: str
    called_from: list[str]  # as in Collective
    state: int  # fingerprint of the weights, 0 if they are not compared


@kind_of_event
class Bypassed(Event):
    """A model that DDP has wrapped is trained by a call that does not go through DDP."""

    at: str
    model: int  # its number, see Parameters


@kind_of_event
class Loose(Event):
    """From here on ranks may differ on purpose: Join, or a communication hook."""

    at: str


@kind_of_event
class Gradients(Event):
    """The gradients of an optimizer, before the script itself averages them, or clips them."""

    optimizer: int
    before_clip: bool  # taken when clipping began; False: right after a backward pass
    sums: list[float]  # a weighted sum of each gradient: that of a mean is the mean of the sums


@kind_of_event
class Parameters(Event):
    """What an optimizer trains: before its first step, and whenever that has changed."""

    optimizer: int
    sizes: list[int]  # numbers in each parameter
    in_ddp: list[bool]  # does DDP average the gradient of this parameter?
    plain: bool  # each is a whole tensor, and not a part of one as FSDP makes it
    made: str = ""  # the line of the optimizer's constructor
    models: list[int] = field(default_factory=list)  # the number of its DDP model, or -1
    before: int = 0  # steps of this optimizer with other parameters: add_param_group() came later


@kind_of_event
class Step(Event):
    """An optimizer is about to apply its gradients."""

    at: str
    optimizer: int  # number of these parameters, in the order of their first steps
    n: int  # steps of these parameters before
    closure: bool  # the backward passes come within the step, as for LBFGS
    rates: list[float]
    finite: bool | None  # no gradient is nan or inf; None if this step is not looked at
    gradients: list[int]  # fingerprints; [] if this step is not looked at
    weights: list[int]  # likewise, before the step; -1 if it has had no gradient
    sums: list[float]  # as in Gradients
    random: dict[str, int]  # fingerprints of the random generators' states, by name
    graphs: int  # graphs of earlier forward passes that are still in memory
    memory: int  # bytes of tensors on the GPU in every tenth step, otherwise 0


@kind_of_event
class Last(Event):
    """The weights after the last step, unless other weights were loaded since."""

    optimizer: int
    n: int  # steps of these parameters
    weights: list[int]


@kind_of_event
class Untrained(Event):
    """What a DDP model has next to the parameters that an optimizer trains, before a step.

    These are its other parameters, and the buffers of modules that the script defines.
    """

    names: list[str]
    state: list[int]  # their fingerprints
    buffers: int  # so many of them are buffers: the last ones
    last: bool  # before no step, but at the end


@kind_of_event
class ScalerStepped(Event):
    """GradScaler.step() is over: it has made a step, or left one out."""


@kind_of_event
class Clipped(Event):
    """Gradients are clipped while they are multiplied by the GradScaler's scale."""

    at: str
    scale: float
    limit: float  # of the norm, or of the values


@kind_of_event
class Keeps(Event):
    """A variable of the script holds the graphs of many steps. `at` is the line that adds one."""

    at: str
    name: str


@kind_of_event
class Scheduled(Event):
    """How far a schedule of the learning rate has gone, at the end of the run."""

    at: str
    name: str  # of its class
    length: int | None  # steps for which it was made
    rises: bool  # it ends with the full rate, as a warm-up does
    gone: int  # steps that it has made
    made: str = ""  # the line of its constructor


# ------------------------------------------------------------------ time, with `speed` only


@kind_of_event
class Plateau(Event):
    """ReduceLROnPlateau gets a value, and decides by it whether the rate becomes smaller."""

    at: str
    value: float | None


@kind_of_event
class Laps(Event):
    """A step is over, or the run is: where was the rank since the step before? There are no gaps.

    The phases are those of watch/laps.py. Times are seconds. The time in which the rank could have
    run and had no core is in `no_core`, and in nothing else.
    """

    n: int  # number of the step, the first one is 1
    seconds: dict[str, float]  # by phase
    no_core: float
    calls: dict[str, float]  # a part of the phase "collective": by "FUNCTION FILE:LINE"
    averages: list[float]  # the phase "exposed" of each backward pass in which DDP averaged
    processor: float  # what all threads of the process computed
    kernel: float  # the part of it in the kernel
    faults: int  # pages of memory that the process asked the system for
    passes: int  # backward passes
    models: int  # DDP objects that averaged in them
    accumulates: bool  # each pass but the first added to gradients that were there
    sent: int  # bytes in the script's own collectives, after the first backward pass
    samples: int  # the first dimensions of the batches; 0 if no batch is seen
    others: int  # steps of other optimizers
    last: bool  # no step, but what follows the last one


FILMED = 20  # of a hundred steps, and of a run, so many of the last ones are written down


@kind_of_event
class Filmed(Event):
    """One of the last steps of a hundred, or of the run, lap by lap, for a film.

    The laps are in their order and have no gaps. Each is [phase, call, end, no core]: the first two
    are those of Laps, the end is a moment of the clock that all processes of a machine share, and
    the last are the seconds of this lap in which the rank could have run and had no core.
    """

    n: int  # number of the step, the first one is 1
    begun: float  # when the step before was over, by the same clock
    laps: list[list]


@kind_of_event
class Reducer(Event):
    """A model was wrapped by DDP: what will it average?"""

    at: str
    bytes: int  # of gradients
    parameters: int
    searches: bool  # find_unused_parameters
    on_gpu: bool


@kind_of_event
class Loaded(Event):
    """A DataLoader begins an epoch, after the first step."""

    at: str
    workers: int
    persistent: bool  # its workers stay from epoch to epoch
    again: bool  # this loader has begun an epoch before


@kind_of_event
class Looks(Event):
    """Until now: a thread has looked every 50 ms in which line of the script the rank was.

    It is written after each hundred steps, and at the end. The last one counts.
    """

    seconds: dict[str, dict[str, float]]  # by phase, and by line
    gradients: int  # that were computed for parameters which DDP averages
    others_without_core: float  # seconds after the third step: of gloo's threads, for example
    threads: int  # of an operation of PyTorch
    cores: int  # of this machine that the process may use


# ------------------------------------------------------------------ models that are not trained


@kind_of_event
class Computes(Event):
    """A model computes in eval mode or without gradients: it is evaluated, or it is a teacher."""

    at: str
    function: str  # that calls it, by the line of its definition
    first: bool  # nothing else computed since eval() or since a batch without gradients
    trained: bool  # an optimizer or DDP has parameters of it
    names: list[str]  # of its buffers, and also of its parameters if it is not trained
    state: list[int]  # their fingerprints


# ------------------------------------------------------------------ data


@kind_of_event
class EpochBegan(Event):
    """A DataLoader begins to give batches.

    Subsets stand with the inner one first, and their positions are fingerprints. random_split()
    makes subsets as well.
    """

    at: str
    loader: int  # number of the loader, in the order of their first epochs
    batches: int | None  # len(loader)
    sampler: str  # its class
    own_order: bool  # the script's own code decides which samples it gives
    settings: dict[str, str]  # the sampler's shuffle, seed, epoch
    data: int  # differs if the ranks' data sets do, as far as their attributes show it
    samples: int | None  # in the data set of the loader, None if it has no length
    subset: int  # differs if the ranks take other positions of it (torch.utils.data.Subset)
    parts: int  # into which the samplers divide the data, of Accelerate too; 1 if they do not
    stock: bool  # the batch sampler is PyTorch's own
    called_from: list[str] = field(default_factory=list)  # as in Collective
    made: str = ""  # the line of the loader's constructor
    made_from: list[str] = field(default_factory=list)  # the lines that led to it
    sampler_made: str = ""  # the same of a DistributedSampler
    subsets: list[list] = field(default_factory=list)  # [the same, positions] of each Subset
    streams: str = ""  # the first line of an IterableDataset's __iter__()
    order_by: str = ""  # the first line of the __iter__() of a sampler that the script defines


@kind_of_event
class Vocabulary(Event):
    """When training begins: a variable that gives numbers to words, or that has words in an order.

    It is a dictionary of words and numbers, or a list of words.
    """

    name: str  # of the variable
    count: int
    words: int  # fingerprint of the words, whatever their order is
    order: int  # fingerprint of the words in the order of their numbers
    numbers: bool  # it is a dictionary


@kind_of_event
class Statistic(Event):
    """Before two steps: a variable with the name of a statistic, such as a mean of the data."""

    name: str
    value: int  # its fingerprint


@kind_of_event
class GlobalBatch(Event):
    """A flag, a name or a comment of the script calls this number the batch of all ranks."""

    at: str
    number: int


@kind_of_event
class Batch(Event):
    """A DataLoader has given a batch to the script."""

    loader: int
    indices: list[int]  # of the samples, in the data set below all subsets
    evaluates: bool  # gradients are off, or eval() was called since the last backward pass


@kind_of_event
class EpochEnded(Event):
    """A DataLoader has no more batches: StopIteration."""

    loader: int


@kind_of_event
class Cut(Event):
    """With --short: the loader gives no further batch of this pass. These would have followed."""

    loader: int
    batches: list[list[int]]  # indices of the samples, as in Batch; [] if they are not known


@kind_of_event
class LoaderRead(Event):
    """With --short: the process has begun to read a DataLoader. It says so once."""


@kind_of_event
class NotEnded(Event):
    """With --short: a pass goes on after N batches, because its loop expects no end there."""

    at: str


ENOUGH = "enough"  # the file in the folder of all processes that ends the ranks which wait


@kind_of_event
class Enough(Event):
    """With --short: two passes of training are over, and the rank waits until it is ended."""

    at: str


@kind_of_event
class Drew(Event):
    """A worker of a DataLoader drew random numbers, as it says when it ends.

    The moment tells nothing but the time: a worker does not know the steps of its rank.
    """

    at: str  # the line that began the epoch
    worker: int  # its number, the first one is 0
    states: dict[str, int]  # of each generator that it used: fingerprint of the first state
    seeded: bool = False  # a worker_init_fn was called before


@kind_of_event
class Seeded(Event):
    """A random generator got a seed."""

    at: str
    generator: str  # torch, numpy, random
    asked: bool  # the script called a function for that; False: a library did it by itself
    seed: str = ""
    called_from: list[str] = field(default_factory=list)  # as in Collective


# ------------------------------------------------------------------ what leaves the process


@kind_of_event
class Printed(Event):
    """The script printed, logged or showed a text with a number in it, or gave one to a logger.

    `at` is the first line of the script on the stack that was not handed the numbers by another.
    """

    at: str
    by: str  # print, logging, tqdm, ...
    text: str
    evaluates: bool  # gradients are off, or eval() was called since the last backward pass
    through: list[str]  # the lines of the script on the stack, the innermost first


@kind_of_event
class Asked(Event):
    """The script asks Lightning to bring a value of the ranks together, now or later."""

    at: str
    called_from: list[str]  # as in Collective


@kind_of_event
class Wrote(Event):
    """The script opened a file to write. `weights`: torch.save stores tensors in it."""

    at: str
    path: str
    weights: bool
    appends: bool
    renamed: bool  # a file that was whole got this name
    passed: int  # calls that waited for other ranks and had returned
    called_from: list[str] = field(default_factory=list)  # as in Collective


@kind_of_event
class Read(Event):
    """The script opened a file to read."""

    at: str
    path: str
    passed: int  # as in Wrote
    found: bool = True  # the file was there
    called_from: list[str] = field(default_factory=list)  # as in Collective


@kind_of_event
class Sent(Event):
    """The script put something into a queue between processes, or into the group's store."""

    at: str


@kind_of_event
class Awaited(Event):
    """The script waited for another process by a lock of a file, or by a key of the store."""

    passed: int  # as in Wrote


@kind_of_event
class FixedPort(Event):
    """The group is joined at a port that the script chooses itself: it stands in a file."""

    at: str  # where the port was chosen
    port: int
    written_in: str  # the file
    number_at: str = ""  # the line of the number, or of what computes it
    computed: bool = False


# ------------------------------------------------------------------ files


KINDS = {kind.__name__: kind for kind in Event.__subclasses__()}


def numbers_of(tensor):
    """A tensor of the CPU becomes a number or a list. This module does not import torch."""
    return tensor.tolist()


ENCODER = json.JSONEncoder(default=numbers_of)


def to_line(event: Event) -> bytes:
    fields = {"kind": type(event).__name__, **vars(event), "when": vars(event.when)}
    return ENCODER.encode(fields).encode() + b"\n"


def from_line(line: bytes) -> Event:
    fields = json.loads(line)
    kind = KINDS[fields.pop("kind")]
    when = Moment(**fields.pop("when"))
    return kind(when, **fields)


def read(path) -> tuple[Event, ...]:
    """The events of a process, in order. A killed process may have cut off its last line."""
    lines = path.read_bytes().split(b"\n")
    events = [from_line(line) for line in lines[:-1]]
    told = defaultdict(dict)
    for event in events:
        if isinstance(event, Later):
            told[event.of, event.number][event.field] = event.value
    numbers = Counter()
    whole = []
    for event in events:
        kind = type(event).__name__
        numbers[kind] += 1
        values = told.get((kind, numbers[kind]))
        whole.append(replace(event, **values) if values else event)
    return tuple(whole)
