"""Valid inputs for the fuzz targets to start from: make_corpus.py DIRECTORY writes DIRECTORY/<target>/<number>."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent.parent / "python")]

from support.checkpoints import (  # noqa: E402  # noqa: E402
    DraftSpec,
    TargetSpec,
    TinyCheckpoint,
    draft_config,
    target_config,
    write_draft,
    write_target,
)

ROPES = [
    {"rope_type": "linear", "factor": 2.0},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    {"rope_type": "yarn", "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 0.5, "truncate": False},
]
SMALL = TargetSpec(num_layers=2, hidden_size=8, intermediate_size=8, num_heads=1, num_kv_heads=1, vocab_size=6,
                   max_position_embeddings=64)  # fmt: skip
DRAFTS = [
    DraftSpec(fc_norm=True, norm_output=True, draft_vocab_size=20),
    DraftSpec(norm_before_fc=True, hidden_size=48, num_heads=6, id_convention="layer_output"),
    DraftSpec(form="speculators", num_captured=4, spelling="layers", attention_bias=True),
    DraftSpec(id_convention="none", id_places=("top", "eagle_config"), spelling="model", fc_bias=True),
]


def compact(config: object) -> bytes:
    return json.dumps(config, separators=(",", ":")).encode()


def image(tiny: TinyCheckpoint) -> bytes:
    return (tiny.directory / "model.safetensors").read_bytes()


def make(scratch: Path) -> dict[str, list[bytes]]:
    targets = [TargetSpec(model_type=kind) for kind in ("llama", "mistral", "qwen2")]
    targets += [TargetSpec(rope_scaling=rope) for rope in ROPES]
    generation = compact({"eos_token_id": [2, 3]})
    wide = TargetSpec(num_layers=8)
    small = write_target(scratch / "small", SMALL)
    tied = write_target(scratch / "tied", TargetSpec(**{**vars(SMALL), "tie_word_embeddings": True, "prefix": ""}))
    drafts = [
        write_draft(scratch / "draft0", small, DraftSpec(num_captured=2, intermediate_size=8, draft_vocab_size=3)),
        write_draft(scratch / "draft1", small, DraftSpec(num_captured=1, intermediate_size=8, fc_norm=True)),
    ]
    weights = [b"\0" + compact(tiny.config) + b"\0" + image(tiny) for tiny in (small, tied)]
    weights += [b"\1" + compact(tiny.config) + b"\0" + image(tiny) for tiny in drafts]
    return {
        "safetensors": [image(tiny) for tiny in (small, *drafts)],
        "decoder_config": [compact(target_config(spec)) + b"\0" + generation for spec in targets],
        "draft_config": [b"\0" + compact(draft_config(spec, wide)) for spec in DRAFTS],
        "weights": weights,
    }


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        for target, inputs in make(Path(scratch)).items():
            directory = Path(sys.argv[1]) / target
            directory.mkdir(parents=True, exist_ok=True)
            for number, data in enumerate(inputs):
                (directory / str(number)).write_bytes(data)


if __name__ == "__main__":
    main()
