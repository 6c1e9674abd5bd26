"""What can be found, and the words for it. A judge only yields facts; see judges.py."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """A judge yields it. Without `fine` the mistake is certain."""

    key: str
    at: str  # the line in which it shows
    seen: str  # a sentence without its full stop
    fine: str = ""  # the case in which it is no mistake
    comes_from: str = ""  # the line to change, if that is known
    role: str = ""  # a word for that line, if its code does not tell what it is
    explained_by: tuple[str, ...] = ()  # keys: with one of these findings this one is left out
    may_follow: tuple[str, ...] = ()  # keys: such findings may be its cause, as those of its kind

    @property
    def severity(self):
        return "check" if self.fine else "wrong"


@dataclass(frozen=True)
class Change:
    """What a line to change is, if "role: code" of it matches, and the cure in this case."""

    match: str
    what: str
    do: str = ""


@dataclass(frozen=True)
class Kind:
    """The words of a finding. `page` and `exercise` are files of the repository."""

    shows_at: str
    do: str
    why: str
    page: str
    exercise: str = ""
    changes: tuple[Change, ...] = ()  # the first that matches is said
    may_follow: tuple[str, ...] = ()  # keys of findings that may be its cause


def here(what):
    """The line to change has one role only."""
    return (Change("", what),)


CONDITION = r"^\w*: ((el)?if |while |@)| if .* else "
GUARDED = "The ranks take different ways at this condition."
OF_RANK = Change(CONDITION, GUARDED)
REDUCE = Change(
    r"dist\w*\.reduce\(",
    "dist.reduce() gives the result to one rank only.",
    "Use dist.all_reduce(), which gives it to all ranks.",
)
SKIPPED = Change(
    "^skip:",
    "By this condition some ranks leave out a step that the others take.",
    "Reduce the value that is tested here over all ranks. Then all ranks take the step or none.",
)
TEST = "Reduce the value over all ranks before you test it."
LEFT = (
    REDUCE,
    Change(
        "^tested:",
        "Only some ranks test this condition, and so the others stay in the loop.",
        "Let all ranks test it. They take the same decision if they test the same value, such as a"
        " gathered or reduced one.",
    ),
    Change(
        r"should_(training_)?stop",
        "This line ends the training of a rank.",
        "Set it on all ranks in the same step.",
    ),
    Change(
        r"^stop: (if |elif |while )",
        "A rank leaves the loop by this condition, which differs between the ranks.",
        TEST,
    ),
    Change(
        "^stop:",
        "A rank leaves the loop by the value that is made here, which differs between the ranks.",
        TEST,
    ),
)
PREPARED = (
    "Multiply the length of the schedule by the number of ranks if Accelerate prepares it."
    " Otherwise call its step() once per step of the optimizer."
)
# A cause stands before its effects: of certain findings, that of the first row is shown first.

NOT_DIVIDED = Change(
    "use_distributed_sampler",
    "This argument tells the framework not to divide the data.",
    "Remove use_distributed_sampler=False.",
)

FINDINGS = {
    # the process
    "raised-before-joining": Kind(
        "the line that raises",
        "Fix the cause of this exception.",
        "The other ranks wait in init_process_group() until its timeout.",
        "docs/failures/messages/hangs.md#a-rank-failed-and-the-report-has-only-its-exit-code",
        changes=here("The exception is raised here."),
    ),
    "never-joined": Kind(
        "the first step",
        "Call init_process_group() in every process, and wrap the model in DDP.",
        "Without these calls each process trains a model of its own.",
        "docs/your_script/adapt.md#the-difference",
        changes=here("This condition decides whether init_process_group() is called."),
    ),
    "fixed-port": Kind(
        "the line that sets the port",
        "Start the script with torchrun --standalone, which finds a free port.",
        "A second job on this machine finds the port taken.",
        "03_ddp_spawn/README.md",
        changes=here("The number of the port is here."),
    ),
    # order and waiting
    "uneven-steps": Kind(
        "the call in which a rank waits",
        "Give all ranks the same number of steps, or put the loop into Join([model]).",
        "DDP's backward pass waits for all ranks, and a rank that has left the loop makes none.",
        "docs/training/uneven_inputs.md",
        "exercises/13_uneven_batches/task.py",
        changes=(
            Change("^loader:", "This loader has more batches on one rank."),
            Change("^part:", "The part of each rank is taken here. One has more samples."),
            Change("^share:", "How many samples a rank gets is computed here, on each rank."),
            Change(
                "^skip:",
                "A rank skips a step by this condition, which differs between the ranks.",
                "Reduce the condition over all ranks, or take the step with a loss of zero.",
            ),
            *LEFT,
        ),
    ),
    "all-send-first": Kind(
        "the call that sends",
        "Let one rank of each pair receive first, or use batch_isend_irecv().",
        "send() waits until the receiving rank calls recv().",
        "docs/reference/glossary.md#point-to-point",
        changes=here("The ranks send here before any of them receives."),
    ),
    "one-rank-communicates": Kind(
        "the call that only some ranks make",
        "Make the same collective calls on all ranks, in the same order.",
        "A collective waits for all ranks. DDP's passes and a framework's barriers and gathers are"
        " such calls.",
        "docs/reference/corrections.md#testing-and-collectives",
        "exercises/03_rank_0_evaluates/task.py",
        changes=(
            Change(
                "^source:",
                "Each rank is the source of its own broadcast here.",
                "Name one source for all ranks: src=0.",
            ),
            *LEFT,
            Change(
                "",
                GUARDED,
                "Take the call out of the condition, so that every rank makes it. If one rank must"
                " run the model alone, call model.module.",
            ),
        ),
    ),
    "crossed-order": Kind(
        "the first call that differs",
        "Make the calls in the same order on all ranks.",
        "The n-th collective of a rank meets the n-th collective of every other rank.",
        "docs/reference/corrections.md#testing-and-collectives",
        "exercises/11_crossed_collectives/task.py",
        changes=(
            Change(
                r"^\w*: (async )?for ",
                "This loop has a different order on each rank.",
                "Loop over one list of names on all ranks, with zeros where a rank lacks one.",
            ),
            Change("", GUARDED),
        ),
    ),
    "file-race": Kind(
        "the line that reads",
        "Call dist.barrier() on all ranks between the writing and the reading.",
        "Nothing makes the reader wait until the file is whole.",
        "docs/your_script/adapt.md#step-by-step",
        "exercises/09_all_ranks_download/task.py",
        changes=(
            Change(
                "^create:",
                "Each rank that does not find the file creates it here.",
                "Let only rank 0 create it. Then call dist.barrier() on all ranks before they read"
                " it.",
            ),
            Change(
                "^read:",
                "Nothing makes a rank wait for the whole file before this line.",
                "Call dist.barrier() on all ranks before this line, after the writing.",
            ),
        ),
    ),
    "saved-by-every-rank": Kind(
        "the line that saves",
        "Let only rank 0 save.",
        "Ranks that write one file overwrite or damage what the others have written.",
        "docs/training/checkpoints.md#who-writes-rank-0-then-a-barrier",
        changes=(
            Change(
                "^results:",
                "Several ranks write to one file here, and the content of one rank remains.",
                "Gather the results of all ranks first, outside of any condition on the rank. Then"
                " let only rank 0 write the file. If all ranks have the same results, leave the"
                " gathering out.",
            ),
            Change("", "Several ranks save to one file here."),
        ),
    ),
    # gradients, rates and weights
    "not-through-ddp": Kind(
        "the backward pass",
        "Call the DDP object itself: model(x) and not model.module(x).",
        "backward() averages the gradients only after a forward pass of the DDP object.",
        "docs/your_script/adapt.md#step-by-step",
        "exercises/04_through_the_module/task.py",
        changes=here("This line calls the model that DDP wraps, and not DDP."),
    ),
    "last-pass-not-synced": Kind(
        "the step",
        "Leave no_sync() out for the last backward pass before optimizer.step().",
        "Gradients that are added after the average stay different on each rank.",
        "docs/training/gradient_accumulation.md",
        "exercises/15_no_sync_off_by_one/task.py",
        changes=(
            Change("^condition:", "This condition leaves the average out in the last pass, too."),
            Change("enabled", "The condition that is given here holds in the last pass, too."),
            Change("grad_sync", "This line switches the average off in the last pass, too."),
            Change("", "no_sync() is called here for the last pass, too."),
        ),
    ),
    "not-in-ddp": Kind(
        "the step",
        "Add all parameters and set requires_grad=True before you wrap the model.",
        "DDP averages only the parameters that needed gradients when it wrapped the model.",
        "docs/training/unused_parameters.md",
        "exercises/17_unfrozen_after_wrapping/task.py",
        changes=here("DDP wraps the model here, without these parameters."),
    ),
    "not-wrapped": Kind(
        "the step",
        "Wrap the model: model = DistributedDataParallel(model).",
        "Nothing averages the gradients, and so each rank trains a model of its own.",
        "docs/your_script/adapt.md#the-difference",
        changes=(
            Change(
                "^gpu:",
                "This condition wraps the model only on GPUs.",
                "Wrap the model on CPUs, too.",
            ),
            Change("", "The model is made here, and DDP does not wrap it."),
        ),
    ),
    "rates-differ": Kind(
        "the step",
        "Give every rank the same rate, and step the schedule on every rank.",
        "Equal gradients times unequal learning rates make unequal weights.",
        "docs/reference/questions.md#metrics-and-losses",
        changes=(
            REDUCE,
            OF_RANK,
            Change(r"step\(\s*\)", "Only some ranks step the schedule here."),
            Change(
                r"step\(",
                "The schedule gets a different value on each rank here.",
                "Reduce the value over all ranks before you give it to the schedule.",
            ),
            Change(r"\+=", "The rate follows from this count, which each rank makes for itself."),
            Change("", "The rate is set here."),
        ),
    ),
    "modes-differ": Kind(
        "the forward pass",
        "Call model.train() on all ranks after an evaluation.",
        "In eval mode dropout does nothing, and BatchNorm uses its running statistics.",
        "docs/reference/corrections.md#testing-and-collectives",
        changes=here("eval() is called here, and some ranks never call train() after it."),
    ),
    "steps-differ": Kind(
        "the step",
        "Call optimizer.step() on all ranks or on none.",
        "step() does not communicate, and so a rank that leaves it out keeps its old weights.",
        "docs/reference/corrections.md#gradients-and-weights",
        changes=(SKIPPED, Change("", GUARDED)),
    ),
    "unused-parameters": Kind(
        "the pass that raises",
        "Use all parameters in the loss, or pass find_unused_parameters=True to DDP.",
        "DDP waits for the gradient of every parameter.",
        "docs/training/unused_parameters.md",
        "exercises/06_unused_branch/task.py",
        changes=here("DDP wraps the model here."),
    ),
    "weights-differ": Kind(
        "the step",
        "Give all ranks the same weights and the same state of the optimizer.",
        "DDP averages only gradients. It copies the weights of rank 0 once, when it wraps the"
        " model, and it never copies the state of the optimizer.",
        "docs/reference/corrections.md#gradients-and-weights",
        changes=(
            REDUCE,
            SKIPPED,
            Change(
                "^state:",
                "Only some ranks load the state of the optimizer by this condition.",
                "Load the state of the optimizer on all ranks: let every rank read the file, or"
                " broadcast the state from rank 0.",
            ),
            Change(
                "^late:",
                "The weights were equal before the first step.",
                "Look for what differs between the ranks in a step: the state of the optimizer, its"
                " settings, or a line that changes weights.",
            ),
            Change(
                "^early: ((el)?if |while |@|.* if .* else )",
                "Only some ranks change weights by this condition.",
                "Change weights before DDP wraps the model, or in the same way on all ranks.",
            ),
            Change(
                CONDITION,
                "Only some ranks change weights or gradients by this condition.",
                "Change them in the same way on all ranks.",
            ),
            Change(
                "load",
                "The ranks load different weights here.",
                "Load the same file on all ranks, or load it before DDP wraps the model.",
            ),
            Change(
                r"broadcast\w*\(",
                "Each rank is the source of its own broadcast here.",
                "Name one source for all ranks: src=0.",
            ),
            Change(
                "^shape:",
                "The model is made here, with other sizes on each rank.",
                "Compute the sizes from data that all ranks share.",
            ),
            Change(
                "^rank:",
                "A setting of the optimizer depends on the rank here.",
                "Give the optimizer the same settings on all ranks.",
            ),
            Change(
                r"\] = ",
                "Each rank overwrites a part of a weight here.",
                "Compute the new values on rank 0, and broadcast the weight.",
            ),
            Change(
                r"\.grad\b",
                "The gradients are changed here, on each rank in another way.",
                "Change the gradients by the same numbers on all ranks.",
            ),
            Change(
                "^early:",
                "The weights are changed here, on each rank in another way.",
                "Change weights before DDP wraps the model, or in the same way on all ranks.",
            ),
            Change(
                "^model:",
                "The model is made here, and nothing sends rank 0's weights to the other ranks.",
                "Broadcast the weights from rank 0 before the first step.",
            ),
            Change(
                "",
                "The weights are changed here, on each rank in another way.",
                "Reduce what they are changed by over all ranks before.",
            ),
        ),
    ),
    "not-the-mean": Kind(
        "the collective, or the step",
        "Divide the gradients by the number of ranks once. DDP does this already.",
        "DDP divides by the number of ranks, and all_reduce() only adds.",
        "docs/failures/messages/training.md#gradients-are-too-small-or-too-large-by-the-number-of-gpus",
        changes=(
            Change(
                "^loss:",
                "The loss is computed here.",
                "Leave the number of ranks out of the loss, because DDP divides by it.",
            ),
            Change("", "The script averages the gradients itself here."),
        ),
    ),
    "unequal-counts": Kind(
        "the backward pass",
        "Divide the sum of the losses by the mean number of targets of the ranks.",
        "DDP gives the mean loss of each rank the same weight, whatever its number of targets.",
        "docs/training/gradient_accumulation.md#loss-normalization-when-token-counts-differ",
        "exercises/14_loss_of_unequal_counts/task.py",
        changes=here("The loss is computed here."),
    ),
    "accumulation-weight": Kind(
        "the step",
        "Divide each loss by the number of micro-batches of its step.",
        "backward() adds gradients up, and DDP averages only over the ranks.",
        "docs/training/gradient_accumulation.md#what-to-watch",
        changes=here("The backward pass of the loss with this factor is here."),
    ),
    "clip-scaled": Kind(
        "the line that clips",
        "Call scaler.unscale_(optimizer) before you clip.",
        "The norm that is clipped is that of the gradients times the scale.",
        "docs/training/amp.md#autocast-gradscaler-and-ddp",
        "exercises/18_clip_before_unscale/task.py",
        changes=here("Gradients are clipped here while they are scaled."),
    ),
    "zero-gradients": Kind(
        "the step",
        "Find out why the loss does not reach these parameters: it may be detached.",
        "A step with zero gradients trains nothing.",
        "docs/training/unused_parameters.md",
        "exercises/21_sharded_too_late/task.py",
        changes=(
            Change(
                "zero_grad",
                "zero_grad() deletes the gradients here, between backward() and step().",
                "Call zero_grad() before backward().",
            ),
            Change(
                "",
                "The optimizer gets parameters here that are not those of the wrapped model.",
                "Wrap the model before you construct the optimizer.",
            ),
        ),
    ),
    "not-finite": Kind(
        "the backward pass, or the step",
        "Look at the batch and the loss of this step, and lower the rate if they are right.",
        "The average is nan or inf as soon as the gradient of one rank is.",
        "docs/training/amp.md#autocast-gradscaler-and-ddp",
        changes=here("The loss is computed here."),
    ),
    "memory-grows": Kind(
        "the line that keeps a graph, or the step",
        "Keep loss.item() or output.detach() instead of the tensor itself.",
        "A tensor that is kept keeps the graph of its forward pass.",
        "docs/failures/messages/devices.md#memory-grows-from-step-to-step",
        changes=here("The graph is kept here."),
    ),
    "batch-grows": Kind(
        "the number, or the step",
        "Divide the batch size by the number of ranks, or adapt the learning rate.",
        "With more ranks an epoch has fewer steps, and each step takes more samples.",
        "docs/training/batch_size_and_learning_rate.md",
        "exercises/05_batch_and_rate/task.py",
        changes=(
            Change("^batch:", "The number is given here as the batch of each rank."),
            Change("", "The loader of each rank is made here, with this batch size."),
        ),
    ),
    "rate-grows": Kind(
        "the optimizer's constructor",
        "Multiply the rate once if the batch of all ranks grows with them, and else not at all.",
        "A larger rate is meant for a larger batch of all ranks.",
        "docs/training/batch_size_and_learning_rate.md",
        changes=here("The rate is multiplied by the number of ranks here."),
    ),
    "schedule-length": Kind(
        "the step of the schedule",
        "Build the schedule for the steps that one rank takes.",
        "Every rank has a schedule of its own, which advances by the steps of this rank. Only a"
        " schedule that Accelerate has prepared advances once for each rank.",
        "docs/training/batch_size_and_learning_rate.md",
        changes=(
            Change(
                "^step:",
                "The schedule advances here.",
                "Build it for the steps that one rank takes, and call its step() once per step of"
                " the optimizer.",
            ),
            Change("^made:", "The schedule is constructed here."),
            Change("^prepared_made:", "The schedule is constructed here.", PREPARED),
            Change(
                "^prepared:", "The number of steps for the schedule is computed here.", PREPARED
            ),
            Change("", "The number of steps for the schedule is computed here."),
        ),
    ),
    # data and random numbers
    "same-data": Kind(
        "the loop over the data",
        "Give the loader sampler=DistributedSampler(dataset).",
        "Each rank must train on its own samples. Otherwise more ranks gain nothing.",
        "docs/your_script/adapt.md#step-by-step",
        changes=(
            NOT_DIVIDED,
            Change(
                r"prepare\(",
                "Accelerate prepares the training here, without the loader.",
                "Give the loader to prepare(), too.",
            ),
            Change(
                "^stream:",
                "The data set gives every rank the same samples here.",
                "Let each rank take only its own samples, by its rank and the number of ranks.",
            ),
            Change(
                "^no_loader:",
                "Every rank takes the same samples here.",
                "Draw different samples on each rank: add the rank to the seed of the draw and of"
                " the environments, or take a slice of the samples by the rank.",
            ),
            Change(
                "^seed:",
                "All ranks get the same seed here, and so they draw the same data.",
                "Draw different data on each rank: seed with seed + rank, after the model is made."
                " Each generator and each environment that gives data needs such a seed.",
            ),
            Change(
                "^weighted:",
                "This sampler draws from all samples on every rank.",
                "Keep the weights. Let each rank draw other samples, as many as the number of"
                " samples divided by the number of ranks: give the sampler this num_samples and a"
                " generator that is seeded with seed + rank.",
            ),
            Change(
                "^own:",
                "This sampler gives every rank all samples.",
                "Let this sampler give each rank only its part of the order, such as"
                " order[rank::world_size], and equally many samples.",
            ),
            Change("", "By this line every rank reads all samples."),
        ),
    ),
    "same-order": Kind(
        "the loop over the data",
        "Call sampler.set_epoch(epoch) at the beginning of each epoch.",
        "Without this call each epoch repeats the batches of the first one.",
        "docs/reference/corrections.md#data-and-random-numbers",
        "exercises/01_same_order/task.py",
        changes=(
            Change("set_epoch", "set_epoch() is called here, but the sampler's epoch stays."),
            Change(
                "seed|default_rng|RandomState|Random\\(",
                "The order is drawn with this seed, which is the same in each epoch.",
                "Add the epoch to this seed.",
            ),
            Change("", "This loop never calls set_epoch()."),
        ),
    ),
    "split-differs": Kind(
        "the loop over the data",
        "Make the same data on all ranks, in the same order and with the same seed.",
        "A number must mean the same sample, word or class on all ranks: samplers divide positions,"
        " and all ranks train one model.",
        "docs/your_script/checklist.md#review-your-script",
        changes=(
            Change("^subset:", "The subset of the data is made here."),
            Change("^share:", "How many samples a rank gets is computed here."),
            Change(
                "^part:",
                "Each rank takes a part of the data here, before the sampler divides them.",
                "Divide the data once: either into a part for each rank, or by the sampler.",
            ),
            Change(
                "^order:",
                "A set or a folder has another order in each process, and so the same number means"
                " another sample or class on each rank.",
                "Sort it, so that all ranks have one order.",
            ),
            Change(
                "^drawn:",
                "The order of the data is drawn here, and each rank draws another one.",
                "Give it a generator with one seed for all ranks.",
            ),
            Change(
                "^statistic:",
                "This value is computed here, on each rank by its own data.",
                "Compute it from all data, or reduce it over all ranks.",
            ),
            Change("^data:", "The data are made here."),
            OF_RANK,
            Change("set_epoch", "The epoch of the sampler is set here."),
            Change(
                "seed_everything|set_seed|manual_seed",
                "The seed depends on the rank here, and the framework's sampler uses it.",
                "Give all ranks one seed here. Seed augmentation with the rank later.",
            ),
            Change(
                "",
                "The sampler is made here.",
                "Give the samplers of all ranks the same seed, epoch and shuffle.",
            ),
        ),
        may_follow=("file-race",),
    ),
    "samples-missing": Kind(
        "the loop over the data",
        "Divide the data once: either into a part for each rank, or by the sampler.",
        "Together the ranks should see each sample of an epoch once.",
        "docs/training/uneven_inputs.md",
        changes=(
            Change("^part:", "The data are divided by the rank here, and then again."),
            Change("Sampler", "The sampler is made here."),
            Change(
                "^seed:",
                "The seed of the order gets the rank here, and each rank divides another order.",
                "Give this order the same seed on all ranks.",
            ),
            Change(
                "^drawn:",
                "The order of the data is drawn here, and each rank draws another one.",
                "Draw it with one seed for all ranks, plus the epoch.",
            ),
            Change("Subset|random_split", "The part of a rank is made here."),
            Change("Loader", "The loader is made here."),
            Change(r"\bhash\(", "hash() of a text differs between processes.", "Use hashlib."),
            Change("", "The part of a rank is taken here."),
        ),
        may_follow=("file-race",),
    ),
    "same-random-numbers": Kind(
        "the forward pass, or the step",
        "Seed with seed + rank after the model is made.",
        "Ranks that draw the same numbers augment their samples alike, or draw the same samples.",
        "docs/reference/corrections.md#data-and-random-numbers",
        "exercises/07_same_augmentation/task.py",
        changes=here("All ranks get the same seed here."),
    ),
    "same-worker-seeds": Kind(
        "the loop over the data",
        "Add the rank to the seed of the workers.",
        "The generator of a rank seeds its workers, and equal seeds give equal numbers.",
        "docs/failures/messages/training.md#the-same-random-numbers-in-every-dataloader-worker",
        changes=here("The workers of all ranks get the same seeds here."),
    ),
    # evaluation
    "padded-evaluation": Kind(
        "the loop over the data",
        "Divide the test set without padding: Subset(data, range(rank, len(data), world_size)).",
        "Samplers repeat samples so that every rank gets the same number.",
        "docs/training/uneven_inputs.md",
        "exercises/02_padded_accuracy/task.py",
        changes=(
            Change(
                r"gather\(",
                "gather() keeps the repeated samples.",
                "Use gather_for_metrics(), which drops them.",
            ),
            Change(
                r"\.reduce\(",
                "The repeated samples are added up here.",
                "Pass the results of each batch through gather_for_metrics() inside the loop, which"
                " drops the repeated ones, and remove this line.",
            ),
            Change(
                r"(?s)^framework:(?!.*Sampler)",
                "The framework gives this loader a sampler that repeats samples.",
                "Evaluate on one rank, or drop the repeated samples after gathering.",
            ),
            Change("", "The sampler that is made here repeats samples."),
        ),
    ),
    "part-of-evaluation": Kind(
        "the loop over the data, or the line that shows the result",
        "Add up the counts of all ranks with all_reduce(), and divide then.",
        "The figure of a rank is that of its part.",
        "docs/reference/corrections.md#testing-and-collectives",
        changes=(
            Change(
                r"\.log(_dict)?\(",
                "self.log() shows the value of rank 0 here.",
                "Pass sync_dist=True to self.log().",
            ),
            Change(
                "Sampler",
                "The sampler that is made here gives rank 0 only a part.",
                "Give rank 0 a loader without this sampler.",
            ),
            Change(
                r"\b(cat|concat|concatenate|[hv]?stack)\(",
                "The results of this rank's samples are put together here.",
                "Gather those of all ranks here, before the result is computed from them.",
            ),
            Change("", "The result of each part is computed here."),
        ),
    ),
    "evaluation-repeated": Kind(
        "the loop over the data",
        "Divide the test set among the ranks, or take the results of one rank only.",
        "Every sample is counted once per rank.",
        "docs/reference/corrections.md#testing-and-collectives",
        changes=(
            NOT_DIVIDED,
            Change(
                r"prepare\(",
                "Accelerate prepares the training here, without the test loader.",
                "Give the test loader to prepare(), too.",
            ),
            Change("", "The loader that is made here gives every rank the whole test set."),
        ),
    ),
    "mean-of-means": Kind(
        "the loop over the data",
        "Add up the sums and the counts of all ranks, and then divide.",
        "A rank with fewer samples gets the same weight as the others.",
        "docs/reference/questions.md#metrics-and-losses",
        changes=(
            Change(r"reduce\(", "The means of the ranks are added up here."),
            Change("", "The mean of a rank is computed here."),
        ),
    ),
    "buffers-differ": Kind(
        "the model that computes",
        "Broadcast weights and buffers from rank 0 before the evaluation.",
        "Results of different models do not belong together, and a checkpoint has the model of one"
        " rank only.",
        "docs/reference/corrections.md#gradients-and-weights",
        "exercises/16_batchnorm_of_rank/task.py",
        changes=(
            Change(
                "broadcast_buffers",
                "DDP wraps the model here, and is told not to send buffers.",
                "Remove broadcast_buffers=False, or broadcast the buffers before the evaluation.",
            ),
            Change(
                "^averaged:",
                "The ranks average the weights here, and leave out the buffers.",
                "Average the buffers as well, or broadcast them from rank 0 after the average.",
            ),
            Change(
                "deepcopy|AveragedModel",
                "The model is copied here before DDP makes the weights equal.",
                "Copy the model after DDP has wrapped it.",
            ),
            Change(
                CONDITION,
                "Only some ranks change weights or buffers by this condition.",
                "Change them on all ranks, or broadcast them from rank 0 after each change.",
            ),
            Change(
                "^made:",
                "This model is made here, and each rank gives it other random weights.",
                "Broadcast its weights from rank 0 once, after this line, or make it with the same"
                " seed on all ranks.",
            ),
            Change(
                "^second:",
                "This model is changed here, in another way on each rank.",
                "Broadcast its weights from rank 0 once, after it is made, and change it in the"
                " same way on all ranks.",
            ),
            Change(
                "^own:",
                "The buffer is changed here by the samples of this rank.",
                "Reduce what it is changed by over all ranks before.",
            ),
        ),
        may_follow=(
            "not-through-ddp",
            "last-pass-not-synced",
            "not-in-ddp",
            "not-wrapped",
            "rates-differ",
            "steps-differ",
            "weights-differ",
        ),
    ),
    "loss-of-one-rank": Kind(
        "the line that shows it",
        "Reduce the loss over all ranks before you show it.",
        "The loss of a rank is that of its part of the data.",
        "docs/failures/messages/training.md#the-printed-loss-or-accuracy-differs-from-one-gpu",
        changes=here("Rank 0 shows its own loss here."),
    ),
}
