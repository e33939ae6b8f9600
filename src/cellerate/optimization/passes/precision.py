"""Precision: tries each dtype policy on the model and its data, and keeps it if it is faster and learns as well."""

from cellerate.format import times
from cellerate.optimization.context import Context
from cellerate.optimization.passes.base import OptimizerPass
from cellerate.optimization.passes.steps import step_gain, training_step
from cellerate.optimization.probe_client import ProbeError
from cellerate.optimization.training import policy_of
from cellerate.report.record import Change, Pass, TrainingStep
from cellerate.training.precision import PrecisionTrial, fastest_precision, precision_candidates

_STEPS = 24


class Precision(OptimizerPass):
    """Trains a few steps in each policy, from the same weights and on the same batches."""

    name = "precision"
    title = "Precision"
    reads = ("choices",)
    writes = ("choices", "training_steps")

    def cost_s(self, context: Context) -> float:
        """A process, and two policies to compile."""
        return 15.0

    def run(self, context: Context) -> Pass:
        """See `OptimizerPass.run`."""
        choices, now = context.state.choices, policy_of(context.workload.model)
        policies = [now, *(p for p in ("float32", *precision_candidates()) if p != now)]
        steps: dict[str, TrainingStep] = {}
        trials = []
        with context.probe() as probe:
            for policy in policies:
                context.listener.note(policy)
                try:
                    step = training_step(
                        probe,
                        implementation=choices.implementation,
                        policy=policy,
                        batch_size=choices.batch_size,
                        length=choices.length,
                        steps=_STEPS,
                    )
                except ProbeError as error:
                    if policy == now:
                        raise
                    trials.append(PrecisionTrial(policy, None, None, str(error)))
                    continue
                if step.loss is None:
                    trials.append(PrecisionTrial(policy, None, None, "its loss is not finite"))
                    continue
                steps[policy] = step
                trials.append(PrecisionTrial(policy, step.step_ms, step.loss))
        chosen = fastest_precision(trials).policy
        gains: tuple[Change, ...] = ()
        decision = f"{now} stays: no other policy is 5 % faster with a loss that holds"
        if chosen != now:
            choices.training_precision = chosen
            context.state.training_steps.append(steps[chosen])
            gain = step_gain(steps[now], steps[chosen])
            gains = (gain,)
            decision = (
                f"{chosen}: steps {times(gain.factor)} as fast, loss {steps[chosen].loss:.4f} after {_STEPS} of "
                f"them against {steps[now].loss:.4f}"
            )
        return Pass(
            name=self.name,
            title=self.title,
            status="done",
            decision=decision,
            kept=chosen != now,
            gains=gains,
            facts=tuple(
                (trial.policy, trial.error or f"{trial.step_ms:.2f} ms a step, loss {trial.loss:.4f}")
                for trial in trials
            ),
        )
