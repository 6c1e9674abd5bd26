GIVEN = (
    "3 micro-batches, k=2; rank 0: the step after micro-batch 2 moved the weights 0.50 times as "
    "far as the mean over the images of all ranks in it"
)
SIZE = "        size = k if number <= len(batches) - rest else rest  # micro-batches in this step\n"
DIVIDED = " / size\n"
LOOP = "    for number, (x, y) in enumerate(batches, start=1):\n"
LAST = "if number % k == 0 or number == len(batches):"
STEP = "            optimizer.step()\n"
RIGHT = {
    "the gradient is divided before the step": [
        (SIZE, ""),
        (DIVIDED, "\n"),
        (
            STEP,
            "            for parameter in model.parameters():\n"
            "                parameter.grad /= (number - 1) % k + 1\n" + STEP,
        ),
    ],
    "the losses of a step are added up": [
        ("    rest = len(batches) % k\n", "    losses = []\n"),
        (SIZE, ""),
        (
            "        loss = F.mse_loss(ddp_model(x), y) / size\n        loss.backward()\n",
            "        losses.append(F.mse_loss(ddp_model(x), y))\n",
        ),
        (
            STEP,
            "            torch.stack(losses).mean().backward()\n            losses = []\n" + STEP,
        ),
    ],
}
WRONG = {
    "the rest is left out": (
        [
            (SIZE + "        loss", "        loss"),
            (DIVIDED, " / k\n"),
            (LAST, "if number % k == 0:"),
        ],
        "after micro-batch 2 a step was to be made, but the weights have not changed",
    ),
    "the last k are divided by the rest": (
        [(SIZE, "        size = rest if rest and number > len(batches) - k else k\n")],
        "3 micro-batches, k=2; rank 0: the step after micro-batches 0 to 1 moved the weights else",
    ),
    "divided by the number so far": (
        [(SIZE, "        size = (number - 1) % k + 1\n")],
        "rank 0: the step after micro-batches 0 to 1 moved the weights elsewhere",
    ),
    "not divided": (
        [(SIZE, ""), (DIVIDED, "\n")],
        "the step after micro-batches 0 to 1 moved the weights 2.00 times as far",
    ),
    "the last micro-batch alone is weighted": (
        [(SIZE, "        size = rest if rest and number == len(batches) else k\n")],
        "2 micro-batches, k=4; rank 0: the step after micro-batches 0 to 1 moved the weights",
    ),
}
