"""Runs the processes of a group on a Ray cluster, which places them, and starts them again after a failure.

Ray only launches: each of its workers runs the command that a user would run, in a process of its own, and the
processes train together as they do without Ray. What a run has done is in its checkpoint, so a worker that dies costs
the steps since the last one.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cellerate.distributed.group import Membership
from cellerate.distributed.launch import BEGIN, free_port
from cellerate.errors import BackendError, ConfigError
from cellerate.machine.environment import LAUNCHED_VARIABLE, require

# Exit codes that another attempt would end with, too: what is wrong with the settings, the data, the model.
_FINAL = (0, 2, 3, 4, 7)
_ATTEMPTS = 3
# What the environment of this process says to the processes on other machines.
_PASSED_ON = ("CELLERATE_", "KERAS_", "XLA_", "JAX_")
_CONNECT_S = 10.0
# How often the end is looked for.
_WAIT_S = 0.2


def launch_on_ray(
    command: Sequence[str],
    address: str,
    count: int,
    *,
    least: int | None = None,
    run: Path,
    extra: Mapping[str, str] | None = None,
    say: Callable[[str], None],
    emit: Callable[[str], None],
) -> int:
    """Runs a command in `count` processes on a cluster and waits for them.

    Every machine must have Cellerate, and see the same files under the same names.

    Args:
        command: The command; after a failure it runs with `--resume`.
        address: The cluster: "local" for one on this machine, "auto" for the one it is part of, or host and port.
        count: How many processes; the most, with `least`.
        least: How many are enough to begin, or to go on with if machines go away; None for `count`.
        run: The folder of the run, whose checkpoints another attempt goes on from.
        extra: Further variables for the environment of the processes.
        say: Shows a line that the first process wrote to stderr.
        emit: Shows what it wrote to stdout, once it has ended.

    Returns:
        The exit code.

    Raises:
        BackendError: Ray is not installed, the cluster cannot be reached, or a process failed again and again.
        ConfigError: The cluster has too few processors.
    """
    require("ray", "ray", "Training on Ray")
    os.environ.setdefault("RAY_TRAIN_V2_ENABLED", "1")
    import ray

    _connect(address)
    try:
        enough = least or count
        found = ray.cluster_resources()
        processors, gpus = int(found.get("CPU", 0)), int(found.get("GPU", 0))
        if address == "local" and processors < enough:
            raise ConfigError(
                f"the Ray cluster has {processors} processors, and {enough} processes need one each: ask for "
                "fewer, or add machines."
            )
        said = _queue()
        listener = _Listener(said, say)
        trainer = _trainer(
            _worker_config(command, run, extra or {}, said),
            run,
            (least, count) if least is not None and least < count else count,
            use_gpu=gpus >= enough,
        )
        _train(trainer, listener)
        emit(listener.results)
        if listener.code is None and listener.others:
            # Only another process has found what is wrong.
            listener.code, last = listener.others[-1]
            say(last)
        return 1 if listener.code is None else listener.code
    finally:
        ray.shutdown()


def _connect(address: str) -> None:
    """Makes this process a part of a cluster.

    Raises:
        BackendError: It cannot be reached.
    """
    import ray

    try:
        if ":" in address and "//" not in address:
            # Ray itself would try for minutes.
            host, _, port = address.rpartition(":")
            socket.create_connection((host, int(port)), _CONNECT_S).close()
        ray.init(
            address=address,
            log_to_driver=False,
            logging_level=logging.ERROR,
            include_dashboard=False if address == "local" else None,
        )
    except (OSError, RuntimeError, ValueError) as error:
        raise BackendError(f"the Ray cluster {address} cannot be reached: {error}") from error


def _queue() -> Any:
    """A queue in which workers on any machine tell this process of their work."""
    import ray
    from ray.util.queue import Queue
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    # Beside this process: a machine that goes away must not take it along.
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return Queue(actor_options={"num_cpus": 0, "scheduling_strategy": here})


def _worker_config(command: Sequence[str], run: Path, extra: Mapping[str, str], said: Any) -> dict[str, Any]:
    """The arguments of `_work`, as Ray sends them to each worker."""
    return {
        "command": [*command],
        "folder": str(Path.cwd()),
        "environment": {
            **{name: value for name, value in os.environ.items() if name.startswith(_PASSED_ON)},
            **extra,
            LAUNCHED_VARIABLE: "1",
        },
        "run": str(run),
        "before": [path.name for path in _checkpoints(run)],
        "said": said,
    }


def _trainer(config: dict[str, Any], run: Path, workers: int | tuple[int, int], *, use_gpu: bool) -> Any:
    """Ray's trainer, which starts the workers and starts them again after a failure."""
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    return DataParallelTrainer(
        _work,
        train_loop_config=config,
        scaling_config=ScalingConfig(num_workers=workers, use_gpu=use_gpu),
        # Ray keeps a little there about the attempts.
        run_config=RunConfig(
            failure_config=FailureConfig(max_failures=_ATTEMPTS),
            storage_path=str((run / "ray").absolute()),
        ),
    )


def _train(trainer: Any, listener: _Listener) -> None:
    """Runs the workers to their end, and shows meanwhile what they say.

    Raises:
        BackendError: They failed again and again.
        KeyboardInterrupt: The user interrupted them.
    """
    from ray.train import TrainingFailedError

    # Ray tells on stdout which workers died.
    with contextlib.redirect_stdout(sys.stderr), listener:
        try:
            trainer.fit()
        except TrainingFailedError as error:
            raise BackendError(
                f"training failed {_ATTEMPTS + 1} times; the last checkpoint is as it was. {listener.last}"
            ) from error
        except SystemExit as error:
            # What Ray makes of Ctrl-C.
            raise KeyboardInterrupt from error


class _Listener:
    """Shows what the first process says, while it says it."""

    def __init__(self, said: Any, say: Callable[[str], None]) -> None:
        self.code: int | None = None
        self.results = self.last = ""
        self.others: list[tuple[int, str]] = []
        self._said, self._say = said, say
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def __enter__(self) -> _Listener:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _listen(self) -> None:
        while True:
            over = self._over.is_set()
            try:
                kind, what = self._said.get(timeout=_WAIT_S)
            except queue.Empty:
                if over:
                    return
                continue
            except Exception:  # whatever Ray raises where the queue is gone: nothing more will be said
                return
            if kind == "exit":
                # Results only of the attempt that came to an end.
                self.code, self.results = what
            elif kind == "other":
                self.others.append(what)
            else:
                self.last = what
                self._say(what)


def _work(config: dict[str, Any]) -> None:
    """The work of a worker: the command, as one process of the group."""
    import ray.train
    from ray.train.collective import broadcast_from_rank_zero

    context = ray.train.get_context()
    number, count = context.get_world_rank(), context.get_world_size()
    # All must begin in the same way, so the first process decides for all.
    made = {path.name for path in _checkpoints(Path(config["folder"], config["run"]))} - {*config["before"]}
    address, again = broadcast_from_rank_zero(
        (f"{ray.util.get_node_ip_address()}:{free_port()}", bool(made)) if number == 0 else None
    )
    command = _again(config["command"]) if again else config["command"]
    process = subprocess.Popen(  # noqa: S603 (the user's own command)
        [*BEGIN, str(os.getpid()), "", *command],
        cwd=config["folder"],
        env={**os.environ, **config["environment"], **Membership(number, count, address).environment()},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    if again and number == 0:
        config["said"].put(("err", f"going on from the last checkpoint, with {count} processes"))
    code, results, last = _heard(process, config["said"] if number == 0 else None)
    if code not in _FINAL:
        raise RuntimeError(f"process {number} of {count} on {socket.gethostname()} ended with {code}: {last}")
    if number == 0:
        config["said"].put(("exit", (code, results)))
    elif code:
        config["said"].put(("other", (code, last)))


def _again(command: Sequence[str]) -> list[str]:
    """The command that resumes a run which `command` began."""
    return [*(word for word in command if word not in ("--resume", "--overwrite")), "--resume"]


def _heard(process: subprocess.Popen[str], said: Any) -> tuple[int, str, str]:
    """Passes on a process's messages until it ends; returns its exit code, its results and its last message."""
    results: list[str] = []
    reader = threading.Thread(target=lambda: results.extend(process.stdout or ()))
    reader.start()
    last = ""
    for line in process.stderr or ():
        last = line.rstrip("\n") or last
        if said is not None:
            said.put(("err", line.rstrip("\n")))
    reader.join()
    return process.wait(), "".join(results), last


def _checkpoints(run: Path) -> list[Path]:
    return [*run.glob("checkpoint-*")]
