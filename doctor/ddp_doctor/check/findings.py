"""What can be found, and the words for it. A judge only yields facts; see judges.py."""

from dataclasses import dataclass

from ..run.words import Words


@dataclass(frozen=True)
class Finding:
    """A judge yields it. Without `fine` the mistake is certain."""

    key: str
    at: str  # the line in which it shows
    seen: str
    fine: str = ""  # the case in which it is no mistake
    comes_from: str = ""  # the line that leads to it, if that is known
    explained_by: tuple[str, ...] = ()  # keys: with one of these findings this one is left out

    @property
    def severity(self):
        return "check" if self.fine else "wrong"


@dataclass(frozen=True)
class Places:
    """What a finding's two lines are: where the mistake shows, and where it comes from.

    Without the second one only the first line is known. SAME: it is the first line itself.
    """

    shows_at: str
    comes_from: str = ""


SAME = "the same line"
PLACES = {
    "raised-before-joining": Places("the line that raises", SAME),
    "never-joined": Places("the first step", "the if around init_process_group()"),
    "fixed-port": Places("the line that sets the port", "the line with the number"),
    "uneven-steps": Places(
        "the call in which a rank waits", "the loader that is longer, or what decides to stop"
    ),
    "all-send-first": Places("the call that sends", SAME),
    "one-rank-communicates": Places(
        "the call that only some ranks make", "the if by the rank, or what decides to stop"
    ),
    "crossed-order": Places("the first call that differs", "the if by the rank"),
    "file-race": Places("the line that reads", "the line that writes"),
    "saved-by-every-rank": Places("the line that saves", SAME),
    "not-through-ddp": Places("the backward pass", "the call of the model that DDP wraps"),
    "last-pass-not-synced": Places("the step", "the line that calls no_sync()"),
    "not-in-ddp": Places("the step", "the line that wraps the model"),
    "not-wrapped": Places("the step", "the model, or the if that wraps it on GPUs only"),
    "rates-differ": Places("the step", "the rate, the step of the schedule, or the if around it"),
    "steps-differ": Places("the step", "the if by the rank"),
    "unused-parameters": Places("the pass that raises", "the line that wraps the model"),
    "weights-differ": Places("the step", "the if by the rank, or the line that changes them"),
    "not-the-mean": Places("the collective, or the step", "the collective, or the loss"),
    "unequal-counts": Places("the backward pass", "the line that computes the loss"),
    "accumulation-weight": Places("the step", "the backward pass of the loss with this factor"),
    "clip-scaled": Places("the line that clips", SAME),
    "zero-gradients": Places("the step", "zero_grad(), or the optimizer's constructor"),
    "not-finite": Places("the backward pass, or the step", "the line that computes the loss"),
    "memory-grows": Places("the line that keeps a graph, or the step", "the line that keeps it"),
    "batch-grows": Places("the number, or the step", "the loader's constructor"),
    "rate-grows": Places("the optimizer's constructor", "the line that multiplies the rate"),
    "schedule-length": Places(
        "the step of the schedule", "the length, the constructor, or the step itself"
    ),
    "same-data": Places("the loop over the data", "the line that should divide the data"),
    "same-order": Places("the loop over the data", "set_epoch(), or the loop over the epochs"),
    "split-differs": Places(
        "the loop over the data", "the line that makes the subset, the data or the sampler"
    ),
    "samples-missing": Places("the loop over the data", "the sampler, or the subset"),
    "same-random-numbers": Places("the forward pass, or the step", "the line that seeds"),
    "same-worker-seeds": Places("the loop over the data", "the line that seeds"),
    "padded-evaluation": Places("the loop over the data", "the sampler's constructor, or gather()"),
    "part-of-evaluation": Places(
        "the loop over the data, or the line that shows the result", "the line that computes it"
    ),
    "evaluation-repeated": Places("the loop over the data", "the loader's constructor"),
    "mean-of-means": Places("the loop over the data", "the line that divides, or adds up"),
    "buffers-differ": Places(
        "the model that computes", "the line that wraps, or the if by the rank"
    ),
    "loss-of-one-rank": Places("the line that shows it", SAME),
}
# A cause stands before its effects: of certain findings, that of the first row is shown first.
FINDINGS = {
    # the process
    "raised-before-joining": Words(
        "The other ranks wait in init_process_group until its timeout.",
        "docs/failures/messages/hangs.md#a-rank-failed-and-the-report-has-only-its-exit-code",
    ),
    "never-joined": Words(
        "Without init_process_group and DDP each process trains by itself.",
        "docs/your_script/adapt.md#the-difference",
    ),
    "fixed-port": Words(
        "A second job on the machine finds the port taken: torchrun --standalone finds a free one.",
        "03_ddp_spawn/README.md",
    ),
    # order and waiting
    "uneven-steps": Words(
        "A rank without more data, or that leaves the loop, lets the others wait.",
        "docs/training/uneven_inputs.md",
        "exercises/13_uneven_batches/task.py",
    ),
    "all-send-first": Words(
        "send() waits until the other rank receives: one has to receive first.",
        "docs/reference/glossary.md#point-to-point",
    ),
    "one-rank-communicates": Words(
        "A collective, as DDP's forward may be one, waits for all ranks.",
        "docs/reference/corrections.md#testing-and-collectives",
        "exercises/03_rank_0_evaluates/task.py",
    ),
    "crossed-order": Words(
        "The n-th collective of a rank meets the n-th of the others.",
        "docs/reference/corrections.md#testing-and-collectives",
        "exercises/11_crossed_collectives/task.py",
    ),
    "file-race": Words(
        "Nothing makes the reader wait until the file is whole: a barrier would.",
        "docs/your_script/adapt.md#step-by-step",
        "exercises/09_all_ranks_download/task.py",
    ),
    "saved-by-every-rank": Words(
        "Ranks that write one file at a time may damage it: let rank 0 save.",
        "docs/training/checkpoints.md#who-writes-rank-0-then-a-barrier",
    ),
    # gradients, rates and weights
    "not-through-ddp": Words(
        "Only the forward pass of the DDP object makes backward() average.",
        "docs/your_script/adapt.md#step-by-step",
        "exercises/04_through_the_module/task.py",
    ),
    "last-pass-not-synced": Words(
        "A gradient that is added to .grad after the average is not shared with the other ranks.",
        "docs/training/gradient_accumulation.md",
        "exercises/15_no_sync_off_by_one/task.py",
    ),
    "not-in-ddp": Words(
        "DDP averages the parameters that needed gradients when it wrapped the model.",
        "docs/training/unused_parameters.md",
        "exercises/17_unfrozen_after_wrapping/task.py",
    ),
    "not-wrapped": Words(
        "Nothing averages the gradients of this model: each rank trains its own.",
        "docs/your_script/adapt.md#the-difference",
    ),
    "rates-differ": Words(
        "Equal gradients times unequal learning rates make unequal weights.",
        "docs/reference/questions.md#metrics-and-losses",
    ),
    "steps-differ": Words(
        "step() does not communicate: a rank that leaves it out keeps its weights.",
        "docs/reference/corrections.md#gradients-and-weights",
    ),
    "unused-parameters": Words(
        "DDP waits for all gradients, unless find_unused_parameters=True tells it to look.",
        "docs/training/unused_parameters.md",
        "exercises/06_unused_branch/task.py",
    ),
    "weights-differ": Words(
        "The ranks train different models, and one of them is saved.",
        "docs/reference/corrections.md#gradients-and-weights",
    ),
    "not-the-mean": Words(
        "DDP divides by the number of ranks already, and all_reduce only adds.",
        "docs/failures/messages/training.md#gradients-are-too-small-or-too-large-by-the-number-of-gpus",
    ),
    "unequal-counts": Words(
        "DDP weighs the mean loss of each rank alike, however many targets it is made of.",
        "docs/training/gradient_accumulation.md#loss-normalization-when-token-counts-differ",
        "exercises/14_loss_of_unequal_counts/task.py",
    ),
    "accumulation-weight": Words(
        "DDP averages over ranks; the loss is divided by the micro-batches that the step has.",
        "docs/training/gradient_accumulation.md#what-to-watch",
    ),
    "clip-scaled": Words(
        "The norm is that of gradients times the scale: call scaler.unscale_(optimizer) before.",
        "docs/training/amp.md#autocast-gradscaler-and-ddp",
        "exercises/18_clip_before_unscale/task.py",
    ),
    "zero-gradients": Words(
        "Such a step changes nothing: a detached loss, zero_grad() too early, dead units.",
        "docs/training/unused_parameters.md",
        "exercises/21_sharded_too_late/task.py",
    ),
    "not-finite": Words(
        "The average is nan or inf as soon as one rank's gradient is.",
        "docs/training/amp.md#autocast-gradscaler-and-ddp",
    ),
    "memory-grows": Words(
        "A loss or output that is kept keeps its graph: take .item() or .detach().",
        "docs/failures/messages/devices.md#memory-grows-from-step-to-step",
    ),
    "batch-grows": Words(
        "More ranks then mean fewer, larger steps: divide the batch, or adapt the rate.",
        "docs/training/batch_size_and_learning_rate.md",
        "exercises/05_batch_and_rate/task.py",
    ),
    "rate-grows": Words(
        "A rate grows with the batch of all ranks, and this batch stays as it is.",
        "docs/training/batch_size_and_learning_rate.md",
    ),
    "schedule-length": Words(
        "len(loader) counts the steps of one rank, and step() may be called more.",
        "docs/training/batch_size_and_learning_rate.md",
    ),
    # data and random numbers
    "same-data": Words(
        "Each rank should train on its own part of an epoch: otherwise nothing is gained.",
        "docs/your_script/adapt.md#step-by-step",
    ),
    "same-order": Words(
        "Without sampler.set_epoch(epoch) each epoch repeats the batches of the first.",
        "docs/reference/corrections.md#data-and-random-numbers",
        "exercises/01_same_order/task.py",
    ),
    "split-differs": Words(
        "A sampler divides positions: all ranks must divide one order of one set.",
        "docs/your_script/checklist.md#review-your-script",
    ),
    "samples-missing": Words(
        "Together the ranks should see each sample of an epoch once.",
        "docs/training/uneven_inputs.md",
    ),
    "same-random-numbers": Words(
        "Ranks that draw the same numbers augment alike: seed with seed + rank.",
        "docs/reference/corrections.md#data-and-random-numbers",
        "exercises/07_same_augmentation/task.py",
    ),
    "same-worker-seeds": Words(
        "A rank's generator seeds its workers: with one seed on all ranks, they draw alike.",
        "docs/failures/messages/training.md#the-same-random-numbers-in-every-dataloader-worker",
    ),
    # evaluation
    "padded-evaluation": Words(
        "Samplers repeat samples until all ranks have equally many.",
        "docs/training/uneven_inputs.md",
        "exercises/02_padded_accuracy/task.py",
    ),
    "part-of-evaluation": Words(
        "Each rank's figure is that of its part: add up the counts.",
        "docs/reference/corrections.md#testing-and-collectives",
    ),
    "evaluation-repeated": Words(
        "Every sample is counted once per rank: divide the test set, or do not add up.",
        "docs/reference/corrections.md#testing-and-collectives",
    ),
    "mean-of-means": Words(
        "A rank with fewer samples gets the same weight: add up answers and counts, then divide.",
        "docs/reference/questions.md#metrics-and-losses",
    ),
    "buffers-differ": Words(
        "Each rank evaluates a model of its own, not the one that is saved: broadcast before.",
        "docs/reference/corrections.md#gradients-and-weights",
        "exercises/16_batchnorm_of_rank/task.py",
    ),
    "loss-of-one-rank": Words(
        "A rank's loss is that of its part of the data: reduce it before printing.",
        "docs/failures/messages/training.md#the-printed-loss-or-accuracy-differs-from-one-gpu",
    ),
}
