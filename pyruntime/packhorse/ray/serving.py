"""The server of `packhorse serve` as a deployment of Ray Serve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from packhorse.load_options import ModelPath
from packhorse.ray.embedder import portable_path, require_ray

if TYPE_CHECKING:
    from ray import serve

    from packhorse.serve import Settings

_MOST_REQUESTS = 4096  # in a replica: its own queue packs them, and refuses those that are too many


def deployment(
    model: ModelPath | Sequence[ModelPath],
    *,
    name: str = "packhorse",
    num_cpus: float = 1,
    num_gpus: float = 0,
    min_replicas: int = 1,
    max_replicas: int = 1,
    target_queued_tokens: int = 1 << 15,
    target_ongoing_requests: int = 512,
    autoscaling: Mapping[str, Any] | None = None,
    **options: Any,
) -> serve.Deployment:
    """A deployment that speaks as `packhorse serve` does: the same routes, queue and answers.

    serve.run(packhorse.ray.deployment("model-folder", num_gpus=0.5, max_replicas=8).bind())

    Its replicas are added and removed by what waits in them: so many that each has about
    `target_queued_tokens` tokens in its queue and at most `target_ongoing_requests` requests.

    model         a folder that all machines have, or a name on the Hugging Face hub; "NAME=PATH"
                  gives it another name, a sequence of them has several models in every replica
    num_cpus      CPUs of a replica, the threads of its sessions on the CPU
    num_gpus      GPUs of a replica; a fraction lets several share one
    target_queued_tokens     tokens that wait in a replica, on average: some batches, which keep
                  the device busy
    target_ongoing_requests  requests of a replica, on average; models that generate are scaled by
                  them
    autoscaling   fields of Ray's `AutoscalingConfig` besides, such as "upscale_delay_s"
    options       settings of `packhorse serve`, such as `dtype` or `max_queue_tokens`

    Needs the extras `ray` and `serve`: ModuleNotFoundError without them. Raises ValueError for
    settings that are not acceptable.
    """
    require_ray()
    from ray import serve
    from ray.serve.config import AutoscalingConfig, AutoscalingPolicy

    from packhorse.ray.autoscaling import QueuedTokens

    targets = {
        "target_queued_tokens": target_queued_tokens,
        "target_ongoing_requests": target_ongoing_requests,
    }
    QueuedTokens(**targets)  # checks them
    settings = _settings(model, num_cpus, num_gpus, options)
    policy = AutoscalingPolicy(
        policy_function=f"{QueuedTokens.__module__}:{QueuedTokens.__name__}", policy_kwargs=targets
    )
    config = AutoscalingConfig(
        **{
            "min_replicas": min_replicas,
            "max_replicas": max_replicas,
            "metrics_interval_s": 1.0,
            "look_back_period_s": 5.0,
            "policy": policy,
            **(autoscaling or {}),
        }
    )
    return serve.deployment(
        _replica(settings),
        name=name,
        ray_actor_options={"num_cpus": num_cpus, "num_gpus": num_gpus},
        autoscaling_config=config,
        max_ongoing_requests=_MOST_REQUESTS,
    )


def _settings(
    model: ModelPath | Sequence[ModelPath],
    num_cpus: float,
    num_gpus: float,
    options: Mapping[str, Any],
) -> Settings:
    """The settings of a replica. The environment of the caller's machine has no say."""
    from packhorse.serve import Settings

    models = model if isinstance(model, Sequence) and not isinstance(model, str) else [model]
    named = [str(one).rpartition("=") for one in models]
    placed = [f"{name}{equals}{portable_path(path)}" for name, equals, path in named]
    given = dict(options)
    given.setdefault("device", "cuda" if num_gpus else "cpu")
    if given["device"] == "cpu":
        given.setdefault("threads", max(1, int(num_cpus)))
    return Settings.load(placed, environment={}, **given)


def _replica(settings: Settings) -> Any:
    """The class of the replicas of a deployment."""
    from ray import serve

    def application() -> Any:
        from packhorse.serve.app import create_app

        return create_app(settings)

    class Replica:
        """One server. Ray Serve asks it how it is, and how much waits in it."""

        app: Any  # set by `serve.ingress`, which runs its lifespan: that loads the models

        def check_health(self) -> None:
            if not self.app.state.service.healthy:
                raise RuntimeError("a thread of the server has ended")

        def record_autoscaling_stats(self) -> dict[str, float]:
            models = self.app.state.service.registry.models()
            return {"queued_tokens": float(sum(model.queue_tokens for model in models))}

    return serve.ingress(application)(Replica)
