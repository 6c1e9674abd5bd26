"""What test_exercises.py answers to each exercise, and what the checker says of it.

GIVEN: words of the verdict on the file as it is given. WRONG: by name edits of our solution, {old:
new}, and words of their verdict. RIGHT: edits that make further right ways.
"""

GIVEN, WRONG, RIGHT = {}, {}, {}

LOADER = "    loader = DataLoader(dataset, batch_size=4, sampler=sampler)\n"
FIXED = (
    "    from torch.utils.data import Subset\n"
    "    loader = DataLoader(Subset(dataset, list(sampler)), batch_size=4, shuffle=True)\n"
)
GIVEN["01"] = "the same images in two epochs\n  yours: [rank 0 in epochs 0 and 1"
WRONG["01"] = {
    "a fixed shard, shuffled": ({LOADER: FIXED}, "the same images in two epochs"),
    "each rank another epoch": (
        {"set_epoch(epoch)": "set_epoch(epoch + dist.get_rank())"},
        "images that no rank sees, in each epoch",
    ),
}

SHARD = "range(dist.get_rank(), len(dataset), dist.get_world_size())"
REDUCE = "    dist.all_reduce(correct)\n"
RESULT = "100 * correct.item() / len(dataset)"
MEAN = """    mean = 100 * correct / max(1, len(shard)) / dist.get_world_size()
    dist.all_reduce(mean)
    return mean.item()
"""
BLOCK = "torch.arange(len(dataset)).tensor_split(dist.get_world_size())[dist.get_rank()]"
GIVEN["02"] = "11 images: different from our solution: the accuracy\n  rank 0: 109.1\n"
RIGHT["02"] = {"contiguous shards": {SHARD: BLOCK}}
WRONG["02"] = {
    "the mean of the ranks' accuracies": ({f"{REDUCE}    return {RESULT}\n": MEAN}, "accuracy"),
    "in train mode": ({"    model.eval()\n": ""}, "the accuracy"),
    "every rank tests everything": (
        {SHARD: "range(len(dataset))", RESULT: f"{RESULT} / dist.get_world_size()"},
        "images that a rank tests: 11 on rank 0, 11 on rank 1; 6 with our solution",
    ),
}

GIVEN["03"] = "rank 0 waits in line"
WRONG["03"] = {
    "another learning rate": ({"lr=0.05": "lr=0.04"}, "what step 1 adds to the weights"),
    "validated in train mode": ({"    model.eval()\n": ""}, "what train returns on rank 0"),
}

DDP = "    ddp_model = DistributedDataParallel(model)\n"
GATHER = """    each = [None] * dist.get_world_size()
    dist.all_gather_object(each, (x, y))
    x, y = map(torch.cat, zip(*each))
"""
GIVEN["04"] = "what step 1 adds to the weights"
WRONG["04"] = {
    "another loss than the model's": ({"net.loss(": "F.mse_loss("}, "what step 1 adds"),
    "all data on every rank": ({DDP: GATHER + DDP}, "each rank: 48 on rank 0, 48 on rank 1; 24"),
}

LOADER = "batch_size=batch_size // dist.get_world_size(), sampler=sampler"
SAMPLER = "    sampler = DistributedSampler(dataset, shuffle=False)\n"
RATE = "lr=lr)\n    for x, y in loader"
GIVEN["05"] = "24 images, batch_size=6: different from our solution: what step 1 adds"
WRONG["05"] = {
    "the batch divided and the rate multiplied": (
        {RATE: RATE.replace("lr=lr", "lr=lr * dist.get_world_size()")},
        "what step 1 adds to the weights",
    ),
    "every rank takes all images": (
        {SAMPLER: "", LOADER: "batch_size=batch_size"},
        "the rows given to the model of each rank: 24 on rank 0, 24 on rank 1; 12",
    ),
}

DDP = "    ddp_model = DistributedDataParallel(model, find_unused_parameters=True)\n"
STATIC = "    ddp_model = DistributedDataParallel(model, static_graph=True)\n"
FROZEN = "    model.heads.requires_grad_(False)\n    ddp_model = DistributedDataParallel(model)\n"
TRUNK = "    ddp_model = model\n    model.trunk = DistributedDataParallel(model.trunk)\n"
GIVEN["06"] = "RuntimeError: Expected to have finished reduction in the prior iteration"
BOTH = """    ddp_model = DistributedDataParallel(BothHeads(model))
"""
TRAIN = "def train(model, batches):\n"
BOTH_HEADS = """class BothHeads(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, task):
        return self.model(x, task) + 0 * self.model(x, 1 - task)


"""
RIGHT["06"] = {"both heads, one of them times zero": {DDP: BOTH, TRAIN: BOTH_HEADS + TRAIN}}
WRONG["06"] = {
    "static_graph": ({DDP: STATIC}, "RuntimeError"),
    "the heads are frozen": ({DDP: FROZEN}, "what step 1 adds to the weights"),
    "only the trunk is wrapped": ({DDP: TRUNK}, "the weights before the first step"),
}

SEED = "    torch.manual_seed(seed + dist.get_rank())"
OWN = """    own = torch.Generator().manual_seed(seed + dist.get_rank())
    torch.manual_seed(seed)"""
EACH = "for epoch in range(epochs):\n        torch.manual_seed(seed + dist.get_rank() + epoch)\n"
GIVEN["07"] = "the same noise twice in a run\n  yours: [rank 0 in epoch 0 and rank 1 in epoch 0"
RIGHT["07"] = {
    "the hash of two numbers": ({"seed + dist.get_rank()": "hash((seed, dist.get_rank()))"}),
}
WRONG["07"] = {
    "a product, which is 0 on all ranks for the seed 0": (
        {"seed + dist.get_rank()": "seed * (dist.get_rank() + 1)"},
        "the same noise twice in a run\n  yours: [rank 0 in epoch 0 and rank 1 in epoch 0 (seed 0)",
    ),
    "a power, which is 1 on all ranks for the seed 1": (
        {"seed + dist.get_rank()": "seed ** (dist.get_rank() + 1)"},
        "the same noise twice in a run",
    ),
    "a generator, for the noise only": (
        {SEED: OWN, "torch.randn_like(x)": "torch.randn(x.shape, generator=own)"},
        "the same dropped activations twice in a run",
    ),
    "the rank plus the epoch": (
        {"for _ in range(epochs):\n": EACH},
        "[rank 0 in epoch 1 and rank 1 in epoch 0",
    ),
    "a text's hash, which each process has its own of": (
        {"seed + dist.get_rank()": "hash(str((seed, dist.get_rank()))) % 2**32"},
        "the same noise again with the same seed",
    ),
}

SEED = "torch.Generator().manual_seed(seed)"
GIVEN["08"] = "images on which one rank validates and another rank trains"
WRONG["08"] = {
    "the global generator, with one seed": (
        {SEED: "torch.manual_seed(seed)"},
        "the same random numbers afterwards as without the split",
    ),
    "no seed": ({SEED: "torch.Generator().manual_seed(0)"}, "different splits for different seeds"),
    "Python's generator, with one seed": (
        {SEED: "torch.Generator().manual_seed(seed)\n    __import__('random').seed(seed)"},
        "the same random numbers afterwards as without the split",
    ),
}

IF_09 = (
    '    if int(os.environ["LOCAL_RANK"]) == 0 and not path.exists():'
    "  # the first rank of each node\n"
)
READ = "    return path.read_bytes()\n"
BARRIER = "    dist.barrier()  # no rank looks for the file before this line\n"
GIVEN["09"] = "downloads on each node\n  yours: [2]\n  our solution: [1]"
HOSTS = """    hosts = [None] * dist.get_world_size()
    dist.all_gather_object(hosts, socket.gethostname())
    first = hosts.index(hosts[dist.get_rank()])
"""
RIGHT["09"] = {
    "the first rank of each host name": {
        "import tempfile\n": "import socket\nimport tempfile\n",
        IF_09: HOSTS + "    if dist.get_rank() == first and not path.exists():\n",
    },
}
WRONG["09"] = {
    "until the file is there, but maybe empty": (
        {BARRIER: "", READ: "    return path.read_bytes() if dist.get_rank() == 0 else b''\n"},
        "bytes that each rank reads\n  yours: [200, 0]",
    ),
    "rank 0 of all nodes": (
        {'os.environ["LOCAL_RANK"]': 'os.environ["RANK"]'},
        "failed in line 30: return path.read_bytes()",
    ),
    "until something is there": (
        {BARRIER: "    while not path.exists():\n        time.sleep(0.1)\n"},
        "bytes that each rank reads\n  yours: [200, 80]",
    ),
}

LOOP = "for x, y in loader:\n"
EVERY = """for step, (x, y) in enumerate(loader):
            if step % 5 == 4:
                dist.barrier()
"""
GIVEN["10"] = (
    "if an epoch has 5 times as many steps: 24 on rank 0, 24 on rank 1; 0 with our solution"
)
WRONG["10"] = {
    "the last batch counts as four images, too": (
        {"loss.item() * len(y)": "loss.item() * 4"},
        "what train returns (18 images)",
    ),
    "in every fifth step": ({LOOP: EVERY}, "5 times as many steps: 6 on rank 0, 6 on rank 1; 0"),
}

GIVEN["11"] = "what totals returns"
WRONG["11"] = {
    "in the order of a set": ({"sorted(counts)": "set(counts)"}, "what totals returns"),
    "sorted by the numbers": (
        {"sorted(counts)": "sorted(counts, key=counts.get)"},
        "what totals returns",
    ),
}

FLAG = (
    "            dist.all_reduce(finite, op=dist.ReduceOp.MIN)  # now all ranks decide the same\n"
)
LEAVE = """            if finite == 0:
                continue  # a broken image must not destroy the weights
"""
NO_LOSS = """            if not loss.isfinite():
                loss = 0 * ddp_model(torch.ones_like(x)).sum()
"""
GIVEN["12"] = "it hangs:\nrank 0 waits in line 33: loss.backward()\nrank 1 waits in line 37: dist"
WRONG["12"] = {
    "a step without the loss of that rank": ({FLAG + LEAVE: NO_LOSS}, "what step 2 adds"),
    "rank 0 decides for all": (
        {FLAG: "            dist.broadcast(finite, src=0)\n"},
        "with nan or infinity in a batch of rank 1: different from our solution",
    ),
    "no step is left out": ({FLAG + LEAVE: ""}, "with nan or infinity in a batch of rank 1"),
}

JOIN = "        with Join([ddp_model]):  # answers for ranks without a batch\n"
LOOP = "            for x, y in batches:\n"
BODY = """                loss = F.mse_loss(ddp_model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
"""
COUNT = """        count = torch.tensor(len(batches))
        dist.all_reduce(count, op=dist.ReduceOp.MIN)
        if True:
"""
SENT = """        for parameter in model.parameters():
            dist.broadcast(parameter.data, src=0)
"""
ALONE = BODY.replace("ddp_model(x)", "(ddp_model if n < count else model)(x)") + SENT
ZEROS = """        count = torch.tensor(len(batches))
        dist.all_reduce(count, op=dist.ReduceOp.MAX)
        for n in range(count):
            x, y = batches[n] if n < len(batches) else (0 * batches[0][0], 0 * batches[0][1])
            loss = F.mse_loss(ddp_model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
"""
NOTHING = ZEROS.replace("(ddp_model(x), y)", "(ddp_model(x), y) * (n < len(batches))")
GIVEN["13"] = "it hangs:\nrank 0 has finished\nrank 1 waits in line"
RIGHT["13"] = {"batches of zeros, whose loss does not count": {JOIN + LOOP + BODY: NOTHING}}
WRONG["13"] = {
    "the rest alone, then rank 0's weights": (
        {JOIN + LOOP + BODY: COUNT + "            for n, (x, y) in enumerate(batches):\n" + ALONE},
        "the average gradient",
    ),
    "batches of zeros": ({JOIN + LOOP + BODY: ZEROS}, "in no batch of any rank: [0]"),
}

COUNT = "        count = (y != -100).sum()\n"
STEP_14 = "        optimizer.step()\n"
GIVEN["14"] = "what step 1 adds to the weights"
WRONG["14"] = {
    "a rank without tokens leaves the step out": (
        {COUNT: "        if (y == -100).all():\n            continue\n" + COUNT},
        "it hangs:\nrank 0 waits in line",
    ),
    "gradients are clipped, which nobody asked for": (
        {STEP_14: "        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n" + STEP_14},
        "what step 5 adds to the weights",
    ),
    "not times the number of ranks": (
        {" * dist.get_world_size() / count": " / count"},
        "what step 1 adds to the weights",
    ),
}

WITH = "        with nullcontext() if last else ddp_model.no_sync():\n"
FORWARD = "            loss = F.mse_loss(ddp_model(x), y) / k\n"
BACKWARD = "            loss.backward()\n"
DDP = "    ddp_model = DistributedDataParallel(model)\n"
EACH = """            for p in model.parameters():
                each = [torch.empty_like(p.grad) for _ in range(dist.get_world_size())]
                dist.all_gather(each, p.grad)
                p.grad = sum(each) / len(each)
"""
GIVEN["15"] = "2 micro-batches, k=2: different from our solution: what step 1 adds"
WRONG["15"] = {
    "no_sync for the backward pass only": (
        {WITH + FORWARD: FORWARD[4:] + WITH},
        "how often all gradients are sent: 2 on rank 0, 2 on rank 1; 1 with",
    ),
    "each micro-batch averaged by all_gather": (
        {
            WITH: "        if True:\n",
            FORWARD: FORWARD.replace("ddp_model", "model"),
            BACKWARD: BACKWARD + EACH,
            DDP: "    for p in model.parameters():\n        dist.broadcast(p.data, src=0)\n",
        },
        "how often all gradients are sent: 2 on rank 0, 2 on rank 1; 1 with",
    ),
}

SEND = "        dist.broadcast(buffer, src=0)\n"
WEIGHTS = SEND + "    for p in model.parameters():\n        dist.broadcast(p.data, src=0)\n"
GIVEN["16"] = "does train return the loss of the model in the file\n  rank 0: no, train returns"
WRONG["16"] = {
    "trained alone, then rank 0's weights": (
        {"F.mse_loss(ddp_model(x), y)": "F.mse_loss(model(x), y)", SEND: WEIGHTS},
        "what step 1 adds to the weights",
    ),
    "other statistics": (
        {SEND: "        buffer.fill_(1)\n"},
        "the statistics in the file come from the batches",
    ),
}

DDP = "DistributedDataParallel(model"
UNUSED = "find_unused_parameters=True"
GIVEN["17"] = (
    "frozen=1 (the numbers of the body come first): different from our solution: what step 2"
)
WRONG["17"] = {
    "parameters that may be unused, nothing else": (
        {
            f"            ddp_model = {DDP})  # DDP notes again what needs gradients\n": "",
            f"    ddp_model = {DDP})\n    opt": f"    ddp_model = {DDP}, {UNUSED})\n    opt",
        },
        "what step 2 adds",
    ),
    "never frozen": ({"    model.body.requires_grad_(False)\n": ""}, "what step 1 adds"),
}

UNSCALE = "        scaler.unscale_(optimizer)  # or clipping would see 65,536 times the gradients\n"
BROADCAST = """    ddp_model = model
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)
"""
AVERAGE = """        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
"""
GIVEN["18"] = "what step 1 adds to the weights"
WRONG["18"] = {
    "each rank looks for infinite gradients before they are averaged": (
        {"    ddp_model = DistributedDataParallel(model)\n": BROADCAST, UNSCALE: UNSCALE + AVERAGE},
        "what step 2 adds to the weights",
    ),
    "no scaler": ({'GradScaler("cpu")': 'GradScaler("cpu", enabled=False)'}, "the loss is scaled"),
}

STRIP = '    consume_prefix_in_state_dict_if_present(state, "module.")  # DDP adds this prefix\n'
STRICT = "    model.load_state_dict(state)\n"
ALWAYS = "    state = {name[len('module.') :]: value for name, value in state.items()}\n"
GIVEN["19"] = "with a file saved from the DDP model (unchanged): different from our solution"
EXIT = """    if state.keys() != model.state_dict().keys():
        raise SystemExit("the file does not fit")
"""
RIGHT["19"] = {
    "the program ends": {STRICT: EXIT + STRICT},
    "the names are asserted": {
        STRICT: "    assert state.keys() == model.state_dict().keys()\n"
        "    model.load_state_dict(state, strict=False)\n"
    },
}
WRONG["19"] = {
    "not strict": (
        {STRICT: "    model.load_state_dict(state, strict=False)\n"},
        "(a weight is missing): different from our solution: an error is raised",
    ),
    "seven letters of every name": (
        {STRIP: ALWAYS},
        "saved from the bare model (unchanged): different from our solution: an error",
    ),
    "only what fits by chance": (
        {STRICT: "    if set(state) & set(model.state_dict()):\n    " + STRICT},
        "(all names differ): different from our solution: an error is raised",
    ),
}

FIRST = "first = self.rank * workers + worker"
OF_RANK = "range(self.rank, self.count, self.world_size) if worker == 0 else ()"
GIVEN["20"] = "2 workers per rank: different from our solution: samples that come more than once"
WRONG["20"] = {
    "one worker reads, the others do not": (
        {"range(first, self.count, self.world_size * workers)": OF_RANK},
        "samples that one worker gets more than another: 12; 1 with our solution",
    ),
    "two workers have one number": ({FIRST: "first = self.rank + worker"}, "more than once"),
}

SHARD = '    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))\n'
CLIP = "        nn.utils.clip_grad_norm_(model.parameters(), max_norm)"
RETURN = "    return {name: weight.full_tensor() for name, weight in model.state_dict().items()}\n"
AFTER = f"""    weights = {{name: weight.clone() for name, weight in model.state_dict().items()}}
{SHARD}    return weights
"""
GIVEN["21"] = "different from our solution: the returned 0.weight"
WRONG["21"] = {
    "the loss times the number of ranks": (
        {"F.mse_loss(model(x), y)": "F.mse_loss(model(x), y) * dist.get_world_size()"},
        "max_norm=3.0: different from our solution: the returned 0.weight",
    ),
    "sharded after the last step": (
        {SHARD: "", CLIP: AVERAGE + CLIP, RETURN: AFTER},
        "the model is sharded in all steps",
    ),
}

FIRST = """        if parameter is not self.parameters[-1]:
            return
"""
STEP = "        self.optimizer.step()\n"
OTHERS = """        for parameter in self.parameters[:-1]:
            parameter.grad /= dist.get_world_size()
            dist.all_reduce(parameter.grad)
"""
DOC = '        """PyTorch calls this in the backward pass when parameter.grad is complete."""\n'
EMPTY = "        self.works = []\n"
GIVEN["22"] = "began after the whole backward pass"
WRONG["22"] = {
    "only the first gradient leaves from its hook": (
        {DOC: DOC + FIRST, STEP: OTHERS + STEP},
        "rank 0: 1 of 12 calls begin before the backward pass has reached the first layer",
    ),
    "nothing is broadcast": (
        {"            dist.broadcast(parameter.data, src=0)\n": "            pass\n"},
        "different from DDP: the weights before the first step",
    ),
    "the sum, which Adam nearly hides": (
        {"        parameter.grad /= dist.get_world_size()\n": ""},
        "yours is 2 times that of DDP",
    ),
}
RIGHT["22"] = {
    "all calls are asynchronous": {
        "        dist.all_reduce(parameter.grad)\n": (
            "        self.works.append(dist.all_reduce(parameter.grad, async_op=True))\n"
        ),
        STEP: "        for work in self.works:\n            work.wait()\n" + EMPTY + STEP,
        "        for parameter in self.parameters:\n": EMPTY
        + "        for parameter in self.parameters:\n",
    }
}

IF = "        if sum(p.nbytes for p in [*self.bucket, parameter]) > self.cap_bytes:\n"
GIVEN["23"] = "made 12 calls in a step, where 3 calls are enough"
WRONG["23"] = {
    "one call for all": ({IF: "        if not parameter.nbytes:\n"}, "began after the whole"),
    "four tensors, whatever cap_bytes is": (
        {IF: "        if len(self.bucket) == 4:\n"},
        "gave a call 4,352 bytes; cap_bytes is 2,276",
    ),
}

STARTED = "        self.started.append((work, flat, self.bucket))\n"
LOOP = "        for work, flat, bucket in self.started:\n            work.wait()\n"
GIVEN["24"] = "waited 4.4 ms for calls that take 4.4 ms"
RIGHT["24"] = {
    "collect_all": {
        LOOP: "        futures = [work.get_future() for work, _, _ in self.started]\n"
        "        torch.futures.collect_all(futures).wait()\n"
        "        for _, flat, bucket in self.started:\n"
    }
}
WRONG["24"] = {
    "its future is waited for at once": (
        {STARTED: STARTED + "        work.get_future().then(lambda f: f.value()).wait()\n"},
        "waited 4.4 ms",
    ),
    "only the last one is waited for": (
        {"            work.wait()\n": "            self.started[-1][0].wait()\n"},
        "never waits for 2 of its calls",
    ),
    "collect_all, but nobody waits for it": (
        {
            LOOP: "        torch.futures.collect_all([s[0].get_future() for s in self.started])\n"
            "        for _, flat, bucket in self.started:\n"
        },
        "never waits for 3 of its calls",
    ),
}

START = "    chunks = tensor.view(-1).tensor_split(world_size)  # some chunks may be empty\n"
TO_ALL = """    others = [other for other in range(world_size) if other != rank]
    mine = tensor.clone()
    sending = [dist.isend(mine, other) for other in others]
    for other in others:
        received = torch.empty_like(tensor)
        dist.recv(received, other)
        tensor += received
    for work in sending:
        work.wait()
    return
"""
GIVEN["25"] = "all_reduce is yours to write"
WRONG["25"] = {
    "all to all": (
        {START: TO_ALL},
        "bytes that a rank sends in its 2 (N - 1) chunks: 192; 128 with our solution",
    ),
    "PyTorch's, by its group": (
        {START: "    return dist.group.WORLD.allreduce(tensor).wait()\n"},
        "other calls than send, recv, isend, irecv\n  yours: [allreduce]",
    ),
    "sums in float32": (
        {"        into += received\n": "        into.copy_(into.float() + received)\n"},
        "different from our solution: the tensor on each rank",
    ),
}

SCATTER = (
    "        self.started.append(dist.reduce_scatter_single(shard.grad, flat, async_op=True))\n"
)
ALL = """        self.started.append(dist.all_reduce(flat, async_op=True))
        shard.grad = self.mine(flat)
"""
GATHER = "            dist.all_gather_single(flat, shard.detach())\n"
FREE = "        for p in bucket:\n            p.grad = None\n"
NOT_FREED = "                p.grad = None\n"
WAIT = "            self.started[-1].wait()  # the bucket before this one is freed now\n"
COPY = "                p.data.copy_(part.view_as(p))\n"
OPTIMIZER = "        self.optimizer = torch.optim.Adam(self.shards, lr=lr)\n"
STEP = "        self.optimizer.step()\n        self.optimizer.zero_grad()\n"
OWN_STATE = """        self.count = 0
        self.averages = [(torch.zeros_like({0}), torch.zeros_like({0})) for p in self.shards]
"""
OWN_ADAM = """    def adam(self, parameter, gradient, averages):
        first, second = averages
        first.lerp_(gradient, 0.1)
        second.lerp_(gradient.square(), 0.001)
        step_size = 0.01 / (1 - 0.9**self.count)
        denominator = (second / (1 - 0.999**self.count)).sqrt() + 1e-8
        parameter.data -= step_size * first / denominator

    def step(self):
"""
ON_SHARDS = """        self.count += 1
        for shard, averages in zip(self.shards, self.averages):
            self.adam(shard, shard.grad, averages)
            shard.grad = None
"""
ON_ALL = """        self.count += 1
        for shard, bucket, averages in zip(self.shards, self.buckets, self.averages):
            whole = self.flat(bucket)
            gradient = torch.empty_like(whole)
            dist.all_gather_single(gradient, shard.grad)
            self.adam(whole, gradient, averages)
            shard.grad = None
            sizes = [p.numel() for p in bucket]
            for p, part in zip(bucket, whole[: sum(sizes)].split(sizes)):
                p.data.copy_(part.view_as(p))
        return
"""
DEF_STEP = "    def step(self):\n"
LAST = "        self.started[-1].wait()\n        self.started = []\n"
EACH_CALL = (
    "        for work in self.started:\n            work.wait()\n        self.started = []\n"
)
GIVEN["26"] = "holds 21,760 bytes of gradients at the end of the backward pass"
RIGHT["26"] = {
    "an Adam of one's own, on shards": {
        OPTIMIZER: OWN_STATE.format("p"),
        DEF_STEP: OWN_ADAM,
        STEP: ON_SHARDS,
    }
}
WRONG["26"] = {
    "an all-reduce, of which a part is used": (
        {SCATTER: ALL},
        "bytes in a step; an all-reduce of each gradient sends 13,056",
    ),
    "the others do not get it": ({GATHER: ""}, "what step 1 adds to the weights"),
    "an Adam of one's own, with the whole state": (
        {
            OPTIMIZER: OWN_STATE.format("p.repeat(dist.get_world_size())"),
            DEF_STEP: OWN_ADAM,
            STEP: ON_ALL,
        },
        "bytes besides the parameters between two steps",
    ),
    "whole gradients stay until the step": (
        {FREE: "", COPY: COPY + NOT_FREED},
        "of gradients at the end of the backward pass",
    ),
    "all calls are on their way at once": (
        {WAIT: "            pass\n", LAST: EACH_CALL},
        "at the end of the",
    ),
}
