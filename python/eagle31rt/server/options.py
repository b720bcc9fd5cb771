"""Settings of the server; `eagle31rt serve --help` explains them."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Limits:
    """What one request may ask for; beyond it comes a 4xx that names the field."""

    max_body_bytes: int = 4 << 20  # json.loads lets no other thread run: about 0.1 s for so many
    max_body_seconds: float = 60.0  # until it is complete
    max_json_depth: int = 64
    max_n: int = 128
    max_prompts: int = 256  # of one completion request
    max_messages: int = 4096  # of one conversation
    max_stop_strings: int = 64
    max_waiting_requests: int = 1024  # samples beyond max_num_seqs; then 429
    retry_after_seconds: int = 1


@dataclass(frozen=True)
class ServerOptions:
    """`served_model_names`: what the field `model` may say; the first is shown in answers and metrics."""

    served_model_names: tuple[str, ...]
    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[str, ...] = ()
    enable_metrics: bool = True
    expose_vllm_metric_names: bool = False
    per_request_spec_decode_metrics: str = "none"  # none | summary
    enable_admin: bool = False
    shutdown_timeout: float = 60.0  # seconds that running requests get after SIGTERM
    access_log: bool = True
    log_level: str = "info"
    limits: Limits = field(default_factory=Limits)
