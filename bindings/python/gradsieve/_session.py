# SPDX-License-Identifier: Apache-2.0
"""Steps, schedules and checkpoints around a hook: what all exchanges in Python share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gradsieve._comm import Comm
from gradsieve._hook import Hook, StepResult, Tensor, choice
from gradsieve.errors import GradsieveError
from gradsieve.spec import Rules

STATE_VERSION = 1


def check_alone(rules: Rules, **options: Any) -> None:
    """Raises for rules and options that are wrong, before ranks meet.

    What ranks do together to make a communicator they count: one that failed in between would come
    to its next try with another count.
    """
    Session(Comm.local(1)[0], rules, **options)


class Session:
    """A hook, the number of its next step, and what waits for it."""

    def __init__(self, comm: Comm, rules: Rules, **options: Any) -> None:
        self.comm = comm
        self.rank = comm.rank
        self.world_size = comm.world_size
        self.hook = Hook(comm, rules, **options)
        self.step = 0
        self.planned: list[Tensor] = []
        self._waiting_state: tuple[list[bytes], str] | None = None
        self._committed = False
        self._outcome = StepResult(False, False)
        self._on_device = options.get("backend") == "cuda"
        self.in_step = False
        self._vetoed: GradsieveError | None = None

    def plan(self, tensors: Sequence[Tensor], buckets: Sequence[Sequence[int]]) -> None:
        self.synchronize()
        self.hook.plan(tensors, buckets)
        self.planned = list(tensors)
        self._committed = False
        if self._waiting_state is not None:
            states, on_world_change = self._waiting_state
            self.hook.load_state(states, on_world_change)
            self._waiting_state = None

    def begin(self, loss_scale: float = 1.0) -> None:
        self.synchronize()
        self.hook.begin(self.step, loss_scale)
        self._vetoed = None
        self.in_step = True

    def veto(self, error: GradsieveError) -> None:
        """Makes finish vote against this step and raise this: what goes beside the hook failed."""
        self._vetoed = self._vetoed or error
        self.hook.veto(error.code)

    def finish(self) -> StepResult:
        self._committed = False
        self.in_step = False
        self.step += 1
        self._outcome = StepResult(False, False, pending=self._on_device)  # also if this fails
        try:
            self._outcome = self.hook.finish()
        except GradsieveError as error:
            if self._vetoed is None:
                raise
            cause = self._vetoed  # the vote knows which rank is missing
            raise GradsieveError(
                str(cause), cause.code, error.rank, cause.tensor, cause.field
            ) from cause
        self._committed = self._outcome.committed
        return self._outcome

    def synchronize(self) -> StepResult:
        """The outcome of the last step, waited for where it is pending."""
        if self._outcome.pending:
            self._outcome = StepResult(False, False)
            self._outcome = self.hook.synchronize()
            self._committed = self._outcome.committed
        return self._outcome

    def captured(self) -> None:
        """What was just finished went into a CUDA graph and has not run: replay makes it a step."""
        self.step -= 1
        self._outcome = StepResult(False, False)

    def replay(self, loss_scale: float) -> None:
        """The next launch of that graph is the next step."""
        self.hook.replay(self.step, loss_scale)
        self.step += 1
        self._committed = False
        self._outcome = StepResult(False, False, pending=True)

    @property
    def committed(self) -> bool:
        """Whether the last step counts, as far as is known."""
        return self._committed

    def refuse(self) -> bool:
        """Undoes the last step if it was committed; whether it was."""
        self.synchronize()
        if not self._committed:
            return False
        self.hook.refuse()
        self._committed = False
        return True

    def set_rules(self, rules: Rules, at_step: int | None = None) -> None:
        """Other rules from step `at_step` on (None: the next). Collective: ranks agree at once."""
        first = self.step if at_step is None else at_step
        if first < self.step:
            raise ValueError(f"at_step is {at_step}; expected {self.step}, the next step, or later")
        self.synchronize()
        self.hook.set_rules(rules, first)

    def residual(self, tensor: str) -> Any:
        for known in self.planned:
            if known.name == tensor:
                return self.hook.residual(tensor, known.num_elements)
        raise KeyError(f"{tensor!r} is no tensor of the plan")

    # ------------------------------------------------------------------------------- checkpoints

    def state_dict(self) -> dict[str, Any]:
        """What this rank must keep to resume bit for bit. Between steps; save one per rank."""
        if not self.planned:
            raise RuntimeError("there is no state before the first step")
        self.synchronize()
        return {
            "version": STATE_VERSION,
            "step": self.step,
            "rank": self.rank,
            "world_size": self.world_size,
            "state": self.hook.save_state(),
        }

    def load_state_dict(
        self, states: Mapping[str, Any] | Sequence[Mapping[str, Any]], on_world_change: str
    ) -> None:
        """This rank's own dictionary, or those of all old ranks, in any order."""
        choice("on_world_change", on_world_change)
        given = [states] if isinstance(states, Mapping) else list(states)
        _check_states(given)
        given.sort(key=lambda state: state["rank"])
        old_size = given[0]["world_size"]
        if old_size == self.world_size:
            given = [state for state in given if state["rank"] == self.rank]
            if not given:
                raise ValueError(
                    f"the state of rank {self.rank} is missing; expected the one this rank saved"
                )
        elif on_world_change == "error":
            raise ValueError(
                f"the state was saved by {old_size} ranks and there are {self.world_size}; "
                'expected on_world_change="redistribute" with the states of all old ranks, '
                'or "reset"'
            )
        elif on_world_change == "redistribute" and len(given) != old_size:
            raise ValueError(
                f"{len(given)} states are given; to redistribute those of all {old_size} old ranks "
                "are needed"
            )
        blobs = [bytes(state["state"]) for state in given]
        if self.planned:
            self.hook.load_state(blobs, on_world_change)
            self._committed = False
        else:
            self._waiting_state = (blobs, on_world_change)  # the plan comes with the first step
        self.step = given[0]["step"]


def _check_states(states: Sequence[Mapping[str, Any]]) -> None:
    keys = {"version", "step", "rank", "world_size", "state"}
    if not states or any(not keys <= set(state) for state in states):
        raise ValueError(f"expected what state_dict() returned, with {', '.join(sorted(keys))}")
    if any(state["version"] != STATE_VERSION for state in states):
        raise ValueError(f"the state is of another version; expected {STATE_VERSION}")
    if len({(state["step"], state["world_size"]) for state in states}) > 1:
        raise ValueError("the states are of different steps or runs; expected one checkpoint")
