"""What pages say of their examples beyond what these print: test_docs.py compares that."""

import importlib
import threading

import pytest
import torch
import torch.distributed as dist
import torch.distributed.nn  # before there is a process group (docs/your_script/backends.md)
import torch.nn as nn
import torch.nn.functional as F
from ranks import on_ranks
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from benchmarks import common

pytestmark = pytest.mark.slow


def example(folder, name):
    return importlib.import_module(f"docs.{folder}.examples.{name}")


# ---------------------------------------------------------------- gradient_accumulation.md


def gradient_of_unequally_many_micro_batches():
    """On a rank: three micro-batches on rank 0, one on rank 1 -> how far the gradient and the
    loss to print are from those of one process."""
    script = example("training", "loss_normalization")
    tokens = [40, 8, 3], [6]
    data = [script.draw(rank, own) for rank, own in enumerate(tokens)]
    model = nn.Embedding(script.WORDS, script.WORDS).double()
    x, y = (torch.cat(parts) for parts in zip(*data[0], *data[1]))
    loss = F.cross_entropy(model(x), y, ignore_index=script.PADDING)
    loss.backward()
    expected, model.weight.grad = model.weight.grad, None
    printed = script.accumulate(DistributedDataParallel(model), data[dist.get_rank()])
    return (model.weight.grad - expected).abs().max().item(), abs(printed - loss).item()


def test_ranks_may_have_unequally_many_micro_batches():
    for gradient, loss in on_ranks(2, gradient_of_unequally_many_micro_batches):
        assert gradient < 1e-15 and loss < 1e-14


# ---------------------------------------------------------------- reinforcement_learning.md


def gradients_of_episodes():
    """On a rank: of all three episodes; by DDP, with one of them on rank 0 and two on rank 1."""
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    script, model = example("training", "reinforce"), nn.Linear(4, 1)
    episodes = [script.play(model, common.CPU) for _ in range(3)]
    own = episodes[:1] if dist.get_rank() == 0 else episodes[1:]
    found = []
    for trained, part in ((model, episodes), (DistributedDataParallel(model), own)):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        script.update(trained, optimizer, part, common.CPU)
        found.append(model.weight.grad.clone())
    return found


def test_ranks_with_unequally_many_samples_have_the_gradient_of_all():
    for together, averaged in on_ranks(2, gradients_of_episodes):
        assert together.abs().max() > 0
        assert torch.allclose(together, averaged, rtol=1e-9, atol=1e-12)


# ---------------------------------------------------------------- compile.md


@pytest.fixture
def one_rank():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def compiling(one_rank):
    torch._dynamo.reset()
    yield example("training", "compile_ddp")
    torch._dynamo.reset()


def backward_of(model):
    model(torch.rand(2, 512)).sum().backward()


def test_a_first_bucket_below_1_mib_is_refused_only_when_compiled(compiling):
    for compiled in (False, True):
        model = compiling.Net()
        ddp_model = DistributedDataParallel(model, bucket_cap_mb=0.5)
        if compiled:
            model.compile(backend="eager")
            with pytest.raises(AssertionError, match="First bucket should be smaller/equal"):
                backward_of(ddp_model)
        else:
            backward_of(ddp_model)


def test_fullgraph_is_for_the_inner_model(compiling):
    model = compiling.Net()
    model.compile(backend="eager", fullgraph=True)
    backward_of(DistributedDataParallel(model))
    wrapper = DistributedDataParallel(compiling.Net())
    with pytest.raises(torch._dynamo.exc.Unsupported):
        backward_of(torch.compile(wrapper, backend="eager", fullgraph=True))


@pytest.mark.parametrize(
    ("warm_up", "step"),
    [("none", "B1 A1 B7 A7"), ("wrapper", "B1 A1 B7 A7"), ("bare model", "B8 A1 A7")],
)
def test_a_warm_up_of_the_bare_model_ends_the_overlap(compiling, warm_up, step):
    """A graph that is compiled without DDP is taken from the cache, and is not split by buckets."""
    compiling.graphs.clear()
    model = compiling.Net()
    model.compile(backend=compiling.counting)
    ddp_model = DistributedDataParallel(model)
    ddp_model.register_comm_hook(None, compiling.noting_hook)
    if warm_up == "bare model":
        backward_of(model)
    elif warm_up == "wrapper":
        with ddp_model.no_sync():
            backward_of(ddp_model)
    model.zero_grad(set_to_none=True)
    for _ in range(3):  # DDP has its final buckets from the second step on.
        compiling.events.clear()
        backward_of(ddp_model)
    assert " ".join(compiling.events) == step


# ---------------------------------------------------------------- amp.md


def test_autocast_is_a_state_of_one_thread_and_gradients_have_the_type_of_the_weights():
    model, found = nn.Linear(2, 2), []

    def forward():
        found.append(model(torch.rand(2, 2)).dtype)

    with torch.autocast("cpu", torch.bfloat16):
        forward()
        thread = threading.Thread(target=forward)
        thread.start()
        thread.join()
        loss = model(torch.rand(2, 2)).sum()
    assert found == [torch.bfloat16, torch.float32]
    loss.backward()
    assert model.weight.grad.dtype == model.weight.dtype == torch.float32


@pytest.mark.parametrize(
    ("outside", "scale", "finite"),
    [(False, 2.0**15, True), (False, 2.0**16, True), (True, 2.0**15, True), (True, 2.0**16, False)],
)
def test_a_loss_outside_of_autocast_has_16_bits(outside, scale, finite):
    """It cannot be multiplied by the first scale of a GradScaler, which is above fp16's numbers."""
    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    labels = torch.arange(16) % 4
    with torch.autocast("cpu", torch.float16):
        outputs = model(torch.randn(16, 8))
        loss = F.cross_entropy(outputs, labels)
    if outside:
        loss = F.cross_entropy(outputs, labels)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    scaler.scale(loss).backward()
    assert loss.dtype == (torch.float16 if outside else torch.float32)
    assert bool(model.weight.grad.isfinite().all()) == finite
    assert torch.amp.GradScaler("cpu").state_dict()["scale"] == 2.0**16


def test_what_16_bits_lose():
    assert torch.ones((), dtype=torch.bfloat16) + 0.002 == 1
    assert torch.tensor(65504.0).half().isfinite() and torch.tensor(65520.0).half().isinf()


def gradients_by(hook, factor):
    """Of a loss that is multiplied by a factor: the same model and data at each call."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(100, 256), nn.ReLU(), nn.Linear(256, 10))
    ddp_model = DistributedDataParallel(model)
    ddp_model.register_comm_hook(None, hook)
    loss = F.cross_entropy(ddp_model(torch.randn(64, 100)), torch.randint(10, (64,)))
    (loss * factor).backward()
    return nn.utils.parameters_to_vector(parameter.grad for parameter in model.parameters())


def test_what_the_compression_hooks_send_and_lose(one_rank, monkeypatch):
    sent, all_reduce = [], dist.all_reduce

    def note(tensor, *args, **options):
        sent.append(tensor.nbytes)
        return all_reduce(tensor, *args, **options)

    monkeypatch.setattr(dist, "all_reduce", note)
    for factor, fp16_fails in ((1, None), (1e-5, 0), (1e7, torch.inf)):
        hooks = default_hooks.allreduce_hook, default_hooks.bf16_compress_hook
        hooks += (default_hooks.fp16_compress_hook,)
        exact, bf16, fp16 = (gradients_by(hook, factor) for hook in hooks)
        assert sent[-3] == 2 * sent[-2] == 2 * sent[-1]
        assert bf16.dtype == fp16.dtype == torch.float32
        errors = [((own - exact) / exact).abs()[exact != 0].median() for own in (bf16, fp16)]
        assert 1e-3 < errors[0] < 3e-3 and bf16.isfinite().all()
        if fp16_fails is None:
            assert 7 < errors[0] / errors[1] < 9
        else:
            assert (fp16[exact != 0].abs() == fp16_fails).sum() > 100


# ---------------------------------------------------------------- memory.md


def test_the_model_is_that_of_the_stages_and_its_activations_those_of_each_image():
    memory = example("speed", "memory")
    stage = importlib.import_module("01_baseline.train").make_model().state_dict()
    own = [tensor.shape for tensor in memory.convnet().state_dict().values()]
    assert own == [tensor.shape for tensor in stage.values()]
    # bytes: images, what the two blocks put out, logits, label
    ends = 4 * (28 * 28 + 16 * 14 * 14 + 32 * 7 * 7 + 10) + 8
    # within a block: convolution, BatchNorm, pooling and its indices of 8 bytes
    inside = 4 * (2 * 16 * 28 * 28 + 16 * 14 * 14 * 2 + 2 * 32 * 14 * 14 + 32 * 7 * 7 * 2)
    for checkpoints, expected in ((False, ends + inside), (True, ends)):
        many, few = (memory.activations(images, False, checkpoints) for images in (20, 10))
        assert (many - few) // 10 == expected


# ---------------------------------------------------------------- unused_parameters.md


def test_one_process_with_the_whole_batch_computes_the_same():
    model = example("training", "unused_parameters").Model()
    first, second = torch.tensor([[1.0]]), torch.tensor([[3.0]])
    ((model(first, "ab") + model(second, "a")) / 2).backward()
    assert model.gradients() == [2.5, 2.0, 0.5, None]


def numbers_sent(**flags):
    """On a rank: two layers of which one is unused, a bucket each -> the numbers all-reduced."""
    layers, counts = nn.ModuleList(nn.Linear(100, 100, bias=False) for _ in range(2)), []
    layers.forward = lambda x: layers[0](x)
    ddp_model = DistributedDataParallel(layers, bucket_cap_mb=0.01, **flags)
    state = dist.group.WORLD, counts
    ddp_model.register_comm_hook(state, example("training", "unused_parameters").counted_all_reduce)
    ddp_model(torch.rand(2, 100)).sum().backward()
    return sum(counts)


def skipped():
    find = {"find_unused_parameters": True}
    return numbers_sent(**find), numbers_sent(**find, skip_all_reduce_unused_params=True)


def test_a_bucket_of_unused_parameters_need_not_be_sent():
    assert on_ranks(2, skipped) == [(20_000, 10_000)] * 2


def test_an_optimizer_skips_none_but_not_zeros():
    for gradient, moves in ((None, False), (torch.zeros(1), True)):
        parameter = nn.Parameter(torch.ones(1))
        parameter.grad = gradient
        torch.optim.SGD([parameter], lr=0.1, momentum=0.9, weight_decay=0.1).step()
        assert (parameter.item() != 1.0) == moves
