"""Learns which loaders feed the training, from the events while they are read.

A loader trains if an optimizer steps by a backward pass of the batches that it handed out. Batches
that are read with no call of the model in between belong together (`zip`). An evaluation calls the
model, too, but the step that follows is of batches that were read after it.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader

from gpurun.identity_map import IdentityMap
from gpurun.runtime.ddp.rank_info import warn
from gpurun.runtime.observe.watched_loaders import LOADERS

ADVICE = "read it under torch.no_grad(), where every rank sees all of it"


@dataclass(eq=False)
class LoaderPass:
    """An iterator on its way through a loader. `where`: the line that builds the loader.

    `in_training`: the model's mode when it was opened. `shared`: each rank gets its part. `handed`:
    it gave a batch. `went_back`: there was a backward pass of one. `stepped`: it trained. `over`:
    it was read to its end.
    """

    loader: weakref.ref[DataLoader[Any]]
    where: str
    ordered: bool
    in_training: bool
    shared: bool
    handed: bool = False
    went_back: bool = False
    stepped: bool = False
    over: bool = False


class LoaderRoles:
    """The roles of one rank's loaders. `strict`: warn if values are computed from shards.

    Modes are the model's: whether it is in training mode.
    """

    def __init__(self, strict: bool) -> None:
        self._strict = strict
        self._trained: IdentityMap[dict[bool, bool]] = IdentityMap()
        self._of_line: dict[tuple[str, bool, bool], set[bool]] = {}
        """Roles of loaders that are built at one line and draw their order alike, by the mode."""
        self.at_hand: list[LoaderPass] = []
        """The passes that were read since the model was last called."""
        self._mode: bool | None = None
        """The mode in which the model was first called since."""
        self._pending: dict[int, tuple[LoaderPass, bool | None]] = {}
        """The passes whose batches were differentiated since the last step."""
        self._backwards = 0
        self._over: LoaderPass | None = None
        """A sharded pass that was read to its end and has not trained so far."""
        self._warned: set[str] = set()

    def known(self, loader: DataLoader[Any], ordered: bool, in_training: bool) -> bool | None:
        """True if a loader trains that is opened in this mode; None: not known yet.

        `ordered`: it hands out its samples as they come.
        """
        own = (self._trained.get(loader) or {}).get(in_training)
        if own is not None:
            return own
        alike = self._of_line.get((_line_of(loader), ordered, in_training), set())
        return next(iter(alike)) if len(alike) == 1 else None

    # -- what happens ------------------------------------------------------------------------------

    def opened(
        self, loader: DataLoader[Any], ordered: bool, in_training: bool, shared: bool
    ) -> LoaderPass:
        """A loader is opened."""
        self._look_back()
        return LoaderPass(weakref.ref(loader), _line_of(loader), ordered, in_training, shared)

    def handed(self, loader_pass: LoaderPass) -> None:
        """It gives a batch that may be trained on."""
        loader_pass.handed = True
        if self._mode is not None:
            self.at_hand.clear()
            self._mode = None
        if loader_pass not in self.at_hand:
            # what was kept to train on later is not given up for what every rank has whole
            kept = [x for x in self.at_hand if not x.over or (x.shared and not loader_pass.shared)]
            self.at_hand = [*kept, loader_pass]

    def called(self, in_training: bool) -> None:
        """The model is used."""
        if self._mode is None:
            self._mode = in_training

    def repeated(self, in_training: bool) -> bool:
        """True if every rank has the whole of the current batch."""
        mode = in_training if self._mode is None else self._mode
        current = [x for x in self.at_hand if in_training in (mode, x.in_training)]
        return bool(current) and not any(x.shared for x in self.at_hand)

    def went_back(self, in_training: bool) -> None:
        """A backward pass is over."""
        self._backwards += 1
        self.called(in_training)
        for loader_pass in self.at_hand:
            loader_pass.went_back = True
            self._pending[id(loader_pass)] = loader_pass, self._mode

    def stepped(self, in_training: bool) -> None:
        """An optimizer steps."""
        if not self._pending:
            return
        for loader_pass, mode in self._pending.values():
            if in_training in (mode, loader_pass.in_training) and not loader_pass.stepped:
                loader_pass.stepped = True
                self._learn(loader_pass, True)
        self._pending.clear()

    def ended(self, loader_pass: LoaderPass) -> None:
        """A pass was read to its end; a script that reads ahead may yet train on its last batch."""
        loader_pass.over = True
        if loader_pass.handed and not loader_pass.went_back:
            if self._backwards:
                self._learn(loader_pass, False)
            if loader_pass.shared:
                self._over = loader_pass

    def finish(self) -> None:
        """The script is over."""
        self._look_back()

    # -- what follows ------------------------------------------------------------------------------

    def _learn(self, loader_pass: LoaderPass, trained: bool) -> None:
        """Remember the role of a loader; one that has trained once stays a training loader."""
        loader = loader_pass.loader()
        known = self._trained.get(loader) or {}
        if known.get(loader_pass.in_training):
            return
        if loader is not None:
            self._trained[loader] = {**known, loader_pass.in_training: trained}
        if loader_pass.where:
            line = loader_pass.where, loader_pass.ordered, loader_pass.in_training
            self._of_line.setdefault(line, set()).add(trained)

    def _look_back(self) -> None:
        """Warn if the last sharded loader was read for something other than training."""
        over, self._over = self._over, None
        if over is None or over.went_back or not self._strict or over.where in self._warned:
            return
        self._warned.add(over.where)
        warn(
            f"the DataLoader of {over.where} was read to its end and trained nothing: values "
            f"computed from it cover only each rank's share of the batches; {ADVICE}"
        )


def _line_of(loader: DataLoader[Any]) -> str:
    return LOADERS.key_of(loader).partition("#")[0]
