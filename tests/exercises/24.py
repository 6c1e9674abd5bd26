GIVEN = "all_reduce_in_buckets is yours to write"
IF = "        if bucket and sum(t.nbytes for t in [*bucket, tensor]) > cap_bytes:\n"
LAST = "    if bucket:\n        average(bucket)\n"
FIRST_FIT = """    buckets = []
    for tensor in tensors:
        for bucket in buckets:
            if sum(t.nbytes for t in [*bucket, tensor]) <= cap_bytes:
                bucket.append(tensor)
                break
        else:
            buckets.append([tensor])
    for bucket in buckets:
        average(bucket)
    bucket = []
    for tensor in []:
"""
HEAD = "    bucket = []\n    for tensor in reversed(tensors):"
COMMENT = "  # the backward pass has the gradients of the last layer first\n"
FLATTEN = """    from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

    flat = _flatten_dense_tensors(bucket) / dist.get_world_size()
    dist.all_reduce(flat)
    for tensor, part in zip(bucket, _unflatten_dense_tensors(flat, bucket)):
        tensor.copy_(part)
    return
"""
FLAT = "    flat = torch.cat([tensor.flatten() for tensor in bucket])\n"
RIGHT = {
    "from first to last": [("reversed(tensors)", "tensors")],
    "into the first that has room": [(HEAD + COMMENT, FIRST_FIT)],
    "with PyTorch's own flatten and unflatten": [(FLAT, FLATTEN + FLAT)],
    "asynchronous": [("dist.all_reduce(flat)", "dist.all_reduce(flat, async_op=True).wait()")],
}
WRONG = {
    "a call for each": (
        [(IF, "        if bucket:\n")],
        "6 calls of all_reduce, where 3 are enough",
    ),
    "one call for all": ([(IF, "        if False:\n")], "all_reduce was given 144 bytes at a time"),
    "closed when it is too full": (
        [("[*bucket, tensor]", "bucket")],
        "all_reduce was given 96 bytes at a time",
    ),
    "closed when it is just full": (
        [("> cap_bytes", ">= cap_bytes")],
        "calls of all_reduce, where 3 are enough",
    ),
    "the last bucket is forgotten": (
        [(LAST, "")],
        "tensor 0 on rank 0 is not the average",
    ),
    "the sum": (
        [("    flat /= dist.get_world_size()\n", "")],
        "is not the average; it begins with",
    ),
    "new tensors in the list": (
        [("tensor.copy_(part.view_as(tensor))", "tensor = part.view_as(tensor)")],
        "tensor 0 on rank 0 is not the average",
    ),
    "views of what is not contiguous": ([("tensor.flatten()", "tensor.view(-1)")], "failed in"),
}
