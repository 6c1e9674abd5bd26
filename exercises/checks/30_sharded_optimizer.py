"""Weights are those of Adam, the same on all ranks; no rank keeps more state than its part."""

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

WORLD_SIZES = (2, 3)
SHAPES = (
    ((6,), (6,), (6,), (6,), (6,), (6,)),
    ((8, 8), (1,), (8, 8), (2,), (8, 8), (1,), (8, 8)),
    ((3,),),  # fewer than ranks
)
STEPS, LR = 3, 0.1
HINTS = (
    "Which parameters does each rank update? All ranks have to agree on that without a message, "
    "and the sizes count, not the number.",
    "Each rank makes a torch.optim.Adam of its parameters only. After its step, the others have "
    "the old values of these parameters.",
    "Give each parameter to the rank that has the fewest elements so far. In step: "
    "self.optimizer.step(), then dist.broadcast(p.data, src=its owner) for every parameter.",
)


def make_parameters(case):
    torch.manual_seed(case)
    made = [torch.rand(shape, dtype=torch.float64) for shape in SHAPES[case]]
    return [torch.nn.Parameter(tensor) for tensor in made]


def set_gradients(params, step):
    torch.manual_seed(50 + step)
    for parameter in params:
        parameter.grad = torch.randn_like(parameter)


def observe(mine):
    return {"cases": [one_case(mine, case) for case in range(len(SHAPES))]}


def one_case(mine, case):
    stepped = {}
    hook = register_optimizer_step_post_hook(lambda o, *_: stepped.__setitem__(id(o), o))
    params = make_parameters(case)
    optimizer = mine.ShardedAdam(iter(params), lr=LR)
    steps = []
    for step in range(STEPS):
        set_gradients(params, step)
        optimizer.step()
        steps.append([p.detach().clone() for p in params])
    hook.remove()
    return {"steps": steps, "bytes": state_bytes(stepped.values())}


def state_bytes(optimizers):
    """Of the averages that Adam keeps; each storage counts once."""
    found = {}
    for optimizer in optimizers:
        for state in optimizer.state.values():
            for name, value in state.items():
                if torch.is_tensor(value) and name != "step":
                    storage = value.untyped_storage()
                    found[storage.data_ptr()] = storage.nbytes()
    return sum(found.values())


def whole(case):
    """-> the parameters after each step of Adam on one process."""
    params = make_parameters(case)
    optimizer = torch.optim.Adam(params, lr=LR)
    for step in range(STEPS):
        set_gradients(params, step)
        optimizer.step()
        yield [p.detach().clone() for p in params]


def judge(ranks):
    for case, shapes in enumerate(SHAPES):
        sizes = [p.numel() for p in make_parameters(case)]
        seen = [rank["cases"][case] for rank in ranks]
        if wrong := judge_weights(seen, case) or judge_bytes(seen, sizes):
            return f"{len(shapes)} parameter{'s' * (len(shapes) > 1)} of {sizes} elements: {wrong}"
    return None


def judge_weights(seen, case):
    for step, wanted in enumerate(whole(case), start=1):
        for number, values in enumerate(seen):
            for index, found in enumerate(values["steps"][step - 1]):
                if not torch.allclose(found, wanted[index], rtol=1e-9, atol=1e-12):
                    return (
                        f"after step {step}, parameter {index} on rank {number} begins with "
                        f"{found.flatten()[0]:.4f}, with Adam on one process "
                        f"{wanted[index].flatten()[0]:.4f}"
                    )
                if not torch.equal(found, seen[0]["steps"][step - 1][index]):
                    return (
                        f"after step {step}, parameter {index} has other bits on rank {number} "
                        f"than on rank 0"
                    )
    return None


def judge_bytes(seen, sizes):
    count, total = len(seen), 16 * sum(sizes)  # two float64 for each element
    most = total / count + 16 * max(sizes)
    for number, values in enumerate(seen):
        if values["bytes"] > most:
            return (
                f"rank {number} keeps {values['bytes']} bytes of state, all ranks together "
                f"{sum(v['bytes'] for v in seen)}; Adam on one process keeps {total}, so at most "
                f"{most:.0f} are to be on a rank"
            )
    if (kept := sum(values["bytes"] for values in seen)) < total:
        return f"the ranks together keep {kept} of {total} bytes of torch.optim.Adam's state"
    return None
