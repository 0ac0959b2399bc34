"""Checkpoints: the state after each epoch, and what it is of: nothing else goes on from it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn
from torch.utils.data import Dataset

from upscale.lab.tuning import identity
from upscale.lab.tuning.identity import Parts, differences
from upscale.lab.tuning.recipes import Epoch, Recipe, TuningError

STATE = "progress.json"
FIXED = ("model", "masks", "recipe", "train", "test")
CHANGING = ("weights", "outputs")


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """A folder of checkpoints of one run, and what that run is of."""

    folder: Path
    model: nn.Module
    test: Dataset[Any]
    fixed: Parts
    begun: Parts

    @classmethod
    def of(
        cls,
        folder: Path,
        model: nn.Module,
        train: Dataset[Any],
        test: Dataset[Any],
        recipe: Recipe,
    ) -> Checkpoints:
        """The checkpoints of a run that is about to begin, or to go on."""
        own = identity.conditions(model, train, test, recipe)
        return cls(folder, model, test, own, identity.state(model, test))

    def save(self, accelerator: Any, epochs: Sequence[Epoch]) -> None:
        """Write a checkpoint beside the last one, name it when whole, drop the last one then."""
        whole = self.folder / f"epoch-{len(epochs)}"
        partial = self.folder / f"{whole.name}.partial"
        if accelerator.is_main_process:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
        accelerator.wait_for_everyone()
        accelerator.save_state(str(partial))
        accelerator.wait_for_everyone()
        if accelerator.is_main_process:
            told = {
                "fixed": identity.parts_to_json(self.fixed),
                "begun": identity.parts_to_json(self.begun),
                "reached": identity.parts_to_json(identity.state(self.model, self.test)),
                "epochs": [asdict(epoch) for epoch in epochs],
            }
            (partial / STATE).write_text(json.dumps(told, indent=2), encoding="utf-8")
            shutil.rmtree(whole, ignore_errors=True)
            partial.rename(whole)
            for older in self.folder.glob("epoch-*"):
                if older != whole:
                    shutil.rmtree(older, ignore_errors=True)
        accelerator.wait_for_everyone()

    def resume(self, accelerator: Any) -> tuple[list[Epoch], Checkpoints]:
        """Load the last checkpoint of this run, if there is one, and what its epochs came to."""
        found = [path.parent for path in self.folder.glob(f"epoch-*/{STATE}")]
        found = [path for path in found if path.name.removeprefix("epoch-").isdecimal()]
        if not found:
            return [], self
        last = max(found, key=lambda path: int(path.name.removeprefix("epoch-")))
        epochs, begun = self._read(last)
        try:
            accelerator.load_state(str(last))
        except Exception as error:  # what a damaged state raises is up to Accelerate's own readers
            raise TuningError(f"{last} is damaged: {error}; take another folder") from error
        return epochs, replace(self, begun=begun)

    def _read(self, last: Path) -> tuple[list[Epoch], Parts]:
        """What a checkpoint's epochs came to, and what it began with; raises unless it is ours."""
        try:
            told = json.loads((last / STATE).read_text(encoding="utf-8"))
            epochs = [Epoch(**epoch) for epoch in told["epochs"]]
            if not isinstance(told, Mapping) or "fixed" not in told:
                raise TuningError(
                    f"{last} does not say which model, masks and data it is of: an older version "
                    "wrote it; take another folder"
                )
            fixed = identity.json_to_parts(told["fixed"], FIXED)
            begun, reached = (
                identity.json_to_parts(told[own], CHANGING) for own in ("begun", "reached")
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise TuningError(f"{last / STATE} is no record of ours: {error}") from error
        other = differences(fixed, self.fixed)
        # Whoever goes on with the model in memory has it as the checkpoint left it.
        if not other and differences(reached, self.begun):
            other = differences(begun, self.begun)
        if other:
            raise TuningError(
                f"{last} is a checkpoint of {'; and of '.join(other)}. Take another folder, or "
                "tune what it was begun with"
            )
        return epochs, begun
