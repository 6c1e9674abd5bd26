GIVEN = "0.weight on rank 0 is"
SHARD = '    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))\n'
CLIP = "        nn.utils.clip_grad_norm_(model.parameters(), max_norm)"
EACH = """        for parameter in model.parameters():
            shard = parameter.grad.to_local()
            shard *= min(1.0, max_norm / (shard.norm().item() + 1e-6))
"""
AVERAGE = """        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
"""
RETURN = "    return {name: weight.full_tensor() for name, weight in model.state_dict().items()}\n"
AFTER = f"""    weights = {{name: weight.clone() for name, weight in model.state_dict().items()}}
{SHARD}    return weights
"""
RIGHT = {
    "each layer is sharded as well": [
        (SHARD, "    for layer in model.children():\n        fully_shard(layer)\n" + SHARD)
    ]
}
WRONG = {
    "each rank clips its shards": ([(CLIP, EACH + "  ")], "one process gets"),
    "not sharded": (
        [(SHARD, ""), (CLIP, AVERAGE + CLIP), ("weight.full_tensor()", "weight")],
        "not all steps had a sharded model",
    ),
    "sharded after the last step": (
        [(SHARD, ""), (CLIP, AVERAGE + CLIP), (RETURN, AFTER)],
        "not all steps had a sharded model",
    ),
    "the shards are returned": ([("weight.full_tensor()", "weight.to_local()")], "is a shard"),
}
