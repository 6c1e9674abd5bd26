GIVEN = "different from our solution: 0.weight"
SHARD = '    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))\n'
CLIP = "        nn.utils.clip_grad_norm_(model.parameters(), max_norm)"
AVERAGE = """        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
"""
RETURN = "    return {name: weight.full_tensor() for name, weight in model.state_dict().items()}\n"
AFTER = f"""    weights = {{name: weight.clone() for name, weight in model.state_dict().items()}}
{SHARD}    return weights
"""
WRONG = {
    "the loss times the number of ranks": (
        [("F.mse_loss(model(x), y)", "F.mse_loss(model(x), y) * dist.get_world_size()")],
        "max_norm=3.0: different from our solution: 0.weight",
    ),
    "sharded after the last step": (
        [(SHARD, ""), (CLIP, AVERAGE + CLIP), (RETURN, AFTER)],
        "a sharded model in all steps",
    ),
}
