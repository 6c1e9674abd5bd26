"""Watches which models compute without being trained: in an evaluation, and next to the training.

From eval(), or from the first batch that is read without gradients, until the next backward pass
each model that computes is noted once. After the third backward pass the same is done until the
fourth one: a teacher or an average of the weights may compute next to the trained model.
A training step may have several backward passes, so a call that does not go through DDP is looked
for from the beginning until the fifth one.
"""

import weakref

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data.dataloader import _BaseDataLoaderIter

from ..run.events import Bypassed, Computes
from .lines import function_of, here, outside, script_frames
from .note import EVERY_STATE, PROCESS, now, quietly, write
from .patch import after, before, is_recorded, replace
from .steps import TRAINING, is_in_ddp
from .tensors import fingerprints


class Looking:
    """While a hook lies on all modules: what has been noted?"""

    def reset(self):
        self.hook = None
        self.known = set()  # ids of the parameters of models that are noted
        self.began = -1  # phase in which the last evaluation began
        self.evaluates = False  # has this evaluation its model yet?
        self.compiled = False
        self.wrapped = weakref.WeakSet()  # models in DDP, and their parts
        self.bypassed = set()  # numbers of the models that are noted since the last pass
        self.only_bypassed = False  # is nothing but note_bypass() asked for?


LOOKING = Looking()
LOOKING.reset()
EVERY_STATE.append(LOOKING)


def install():
    replace(DDP, "_ddp_init_helper", after(note_ddp))
    replace(torch.nn.Module, "eval", before(note_evaluation))
    replace(_BaseDataLoaderIter, "__next__", after(note_batch))
    replace(torch.autograd, "backward", before(note_pass))
    replace(torch, "compile", before(note_compile))


def note_compile(*args, **kwargs):
    """A hook on all modules would make torch.compile() compile them again."""
    LOOKING.compiled = True
    stop_looking()


def note_batch(*args):
    if not torch.is_grad_enabled():
        note_evaluation()


def note_evaluation(*args):
    if LOOKING.began == TRAINING.phase:
        return
    LOOKING.began = TRAINING.phase
    LOOKING.evaluates = False
    if PROCESS.passes:  # otherwise nothing is trained yet
        LOOKING.only_bypassed = False
        look()


def note_pass(*args, **kwargs):
    """Training goes on."""
    stop_looking()
    LOOKING.known = set()
    LOOKING.bypassed = set()
    LOOKING.only_bypassed = PROCESS.passes != 2
    if PROCESS.passes < 4:
        look()


def stop_looking():
    if LOOKING.hook is not None:
        LOOKING.hook.remove()
    LOOKING.hook = None


def look():
    if LOOKING.hook is None and not LOOKING.compiled:
        LOOKING.hook = register_module_forward_pre_hook(before_module)


def before_module(module, inputs):
    if not PROCESS.is_rank() or is_recorded():
        return
    if torch.is_grad_enabled() and module.training:
        quietly(note_bypass, module)
    elif not LOOKING.only_bypassed:
        quietly(note_model, module)


def note_bypass(module):
    """A model that DDP has wrapped computes, or a part of it. Is it DDP that calls it?

    A frozen one is not trained. In a backward pass a checkpointed part computes again.
    """
    if PROCESS.waits_in or module not in LOOKING.wrapped:
        return
    for parameter in module.parameters():
        number = TRAINING.model_of.get(id(parameter), -1)
        if parameter.requires_grad and number >= 0:
            if number not in LOOKING.bypassed:
                LOOKING.bypassed.add(number)
                write(Bypassed(now(), outside(LOOKING.wrapped), number))
            return


def note_ddp(_, ddp, *args, **kwargs):
    LOOKING.wrapped.update(ddp.module.modules())
    if not PROCESS.passes:
        LOOKING.only_bypassed = True
        look()


def note_model(module):
    parameters = list(module.parameters())
    ids = {id(parameter) for parameter in parameters}
    # A part of a model that is noted already. DDP sends the buffers before its module computes.
    if not ids or ids & LOOKING.known or isinstance(module, DDP):
        return
    LOOKING.known |= ids
    trained = bool(ids & TRAINING.trained) or any(map(is_in_ddp, parameters))
    first = LOOKING.began == TRAINING.phase and not LOOKING.evaluates
    if first:
        LOOKING.evaluates = True
    elif trained:
        return
    state = dict(module.named_buffers()) if trained else module.state_dict()
    frame = next(script_frames())
    write(
        Computes(
            now(),
            at=here(),
            function=function_of(frame),
            first=first,
            trained=trained,
            names=list(state),
            state=fingerprints(state.values()),
        )
    )
