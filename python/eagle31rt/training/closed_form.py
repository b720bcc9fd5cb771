"""A closed-form start: most of what a head can learn is linear, and least squares finds that part in a minute.

Regression of the target's next last state (unit RMS) on [captured states of p, embedding of token p + 1]. The captured
part becomes fc, the residual stream. The embedding part, reduced to the rank that the values have, becomes o_proj times
what makes the values (v_proj; of a latent attention kv_b_proj, norm and kv_a_proj_with_mqa) of heads that attend to
their own slot: one query head per kv head. Everything else starts almost silent.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F

from eagle31rt.errors import CheckpointError
from eagle31rt.training.attention import GroupedAttention
from eagle31rt.training.head import DraftHead
from eagle31rt.training.latent_attention import LatentAttention
from eagle31rt.training.unroll import Batch, Slots

MAX_ROWS = 400_000  # 60,000 rows of 190 conversations fit those: agreement 0.41 there and 0.31 elsewhere (135 M target)
_RIDGE = 0.01  # relative to the variance of a standardised input
_QUIET = 0.1  # factor of what should barely speak at the start
_FLOOR = 0.01  # of the largest scale: what a latent keeps of directions that hardly matter
_SELF_SCORE = 9.0  # attention score of a slot with itself, in units of its norm: softmax puts nearly all weight there


def _unit(values: torch.Tensor, epsilon: float) -> torch.Tensor:
    return F.rms_norm(values, values.shape[-1:], None, epsilon)


class _Moments:
    """Sums for the normal equations, in float64."""

    def __init__(self, width: int, hidden: int) -> None:
        self.inputs = torch.zeros(width, width, dtype=torch.float64)  # X^T X
        self.mixed = torch.zeros(width, hidden, dtype=torch.float64)  # X^T Y
        self.rows = 0

    def add(self, inputs: torch.Tensor, outputs: torch.Tensor) -> None:
        self.inputs += (inputs.t() @ inputs).double()
        self.mixed += (inputs.t() @ outputs).double()
        self.rows += len(inputs)


def _add_batch(moments: _Moments, head: DraftHead, batch: Batch) -> None:
    epsilon = head.sizes.rms_norm_eps
    slots = Slots(batch)
    inside = slots.tokens_left >= 2
    row = slots.row[inside]
    row = row[batch.counted[row + 2]]
    captured = batch.captured[row]
    if head.sizes.fc_norm:
        chunks = captured.chunk(len(head.sizes.capture_layers), dim=-1)
        captured = torch.cat([_unit(chunk, epsilon) for chunk in chunks], dim=-1)
    embedded = _unit(head.embedding[batch.token_ids[row + 1]], epsilon)
    moments.add(torch.cat([captured, embedded], dim=-1).cpu(), _unit(batch.last[row + 1], epsilon).cpu())


def _solve(moments: _Moments) -> tuple[torch.Tensor, torch.Tensor]:
    """Coefficients [width, hidden] and the RMS of every input [width]."""
    scale = (moments.inputs.diagonal() / moments.rows).sqrt().clamp_min(1e-9)
    normal = moments.inputs / scale[:, None] / scale[None, :]
    normal.diagonal().add_(_RIDGE * moments.rows)
    return torch.linalg.solve(normal, moments.mixed / scale[:, None]) / scale[:, None], scale


@torch.no_grad()
def closed_form_start(head: DraftHead, batches: Iterable[Batch], seed: int) -> int:
    """Sets the head's weights from about MAX_ROWS positions of `batches`; returns how many were used."""
    hidden = head.sizes.hidden_size
    width = len(head.sizes.capture_layers) * hidden
    moments = _Moments(width + hidden, hidden)
    for batch in batches:
        _add_batch(moments, head, batch)
        if moments.rows >= MAX_ROWS:
            break
    if moments.rows == 0:
        return 0
    if not torch.isfinite(moments.inputs).all() or not torch.isfinite(moments.mixed).all():
        raise CheckpointError("the target's states are not finite: its weights are damaged, or overflow their type")
    coefficients, scale = _solve(moments)
    if not head.sizes.fc_norm:
        head.fc_scale.copy_(1.0 / scale[:width].float())
    head.fc.weight.copy_((coefficients[:width].t().float().to(head.fc.weight.device)) / head.fc_scale)
    _set_attention(head, coefficients[width:], moments.inputs[width:, width:] / moments.rows, seed)
    head.midlayer.mlp.down_proj.weight.mul_(_QUIET)
    return moments.rows


def _root(covariance: torch.Tensor) -> torch.Tensor:
    """Cholesky factor of positive semi-definite moments [hidden, hidden].

    Sums in float32 leave eigenvalues a little below zero where there are fewer different tokens than dimensions: the
    ridge grows until they are above.
    """
    ridge = 1e-6
    while True:
        root, failed = torch.linalg.cholesky_ex(covariance + ridge * torch.eye(len(covariance), dtype=torch.float64))
        if not failed or not ridge < 1.0:  # the diagonal is about 1
            return root
        ridge *= 10.0


def _set_attention(head: DraftHead, coefficients: torch.Tensor, covariance: torch.Tensor, seed: int) -> None:
    """`coefficients` [hidden, hidden] of the embedding, whose second moments are `covariance`."""
    attention = head.midlayer.self_attn
    singular, basis = torch.linalg.svd(_root(covariance).t() @ coefficients)[1:]
    basis = basis.t()  # columns: output directions, those that matter most first
    generator = torch.Generator().manual_seed(seed)
    attention.o_proj.weight.mul_(_QUIET)
    if isinstance(attention, LatentAttention):
        _set_latent(attention, coefficients @ basis, singular, basis, generator)
    elif isinstance(attention, GroupedAttention):
        _set_grouped(attention, coefficients, basis, generator)


def _set_grouped(
    attention: GroupedAttention, coefficients: torch.Tensor, basis: torch.Tensor, generator: torch.Generator
) -> None:
    hidden, head_dim, kv_heads = len(basis), attention.sizes.head_dim, attention.sizes.num_kv_heads
    device = attention.o_proj.weight.device
    rank = min(hidden, kv_heads * head_dim)
    basis = basis[:, :rank]
    values = (coefficients @ basis).t().float().to(device)  # [rank, hidden]
    attention.v_proj.weight[:, hidden:].mul_(_QUIET)
    attention.v_proj.weight[:rank, :hidden] = values
    attention.q_proj.weight.mul_(0.5)
    attention.k_proj.weight.mul_(0.5)
    group = attention.q_proj.out_features // attention.k_proj.out_features
    for kv_head in range(kv_heads):
        rows = slice(kv_head * head_dim, (kv_head + 1) * head_dim)
        columns = slice(kv_head * group * head_dim, kv_head * group * head_dim + head_dim)
        # E|R x|^2 = head_dim * sigma^2 * hidden for an x of unit RMS; as a score it is scaled by head_dim^-0.5.
        sigma = (_SELF_SCORE / (head_dim**0.5 * hidden)) ** 0.5
        projection = (torch.randn(head_dim, hidden, generator=generator) * sigma).to(device)
        attention.k_proj.weight[rows, :hidden] = projection
        attention.q_proj.weight[columns, :hidden] = projection
        part = basis[:, kv_head * head_dim : min(rank, (kv_head + 1) * head_dim)].float().to(device)
        attention.o_proj.weight[:, columns.start : columns.start + part.shape[1]] = part


def _set_latent(
    attention: LatentAttention,
    projection: torch.Tensor,
    singular: torch.Tensor,
    basis: torch.Tensor,
    generator: torch.Generator,
) -> None:
    """projection [hidden, hidden]: of an embedding to the directions `basis` [hidden, hidden]; singular [hidden]: the
    RMS of what comes out there.

    The latent passes a norm, which would divide every token by another number: it is whitened, so that its RMS differs
    little, and the up projection restores the scales. The same latent, seen through a random matrix, is key and query.
    """
    sizes, hidden = attention.sizes, len(basis)
    device = attention.o_proj.weight.device
    nope, value = sizes.qk_nope_head_dim, sizes.v_head_dim
    num_heads = attention.o_proj.in_features // value
    rank = min(hidden, sizes.kv_lora_rank, num_heads * value)
    scales = singular[:rank] + _FLOOR * singular[0]
    whitened = (projection[:, :rank] / scales).t().float().to(device)  # [rank, hidden]
    spread = (((singular[:rank] / scales) ** 2).sum() / sizes.kv_lora_rank).sqrt().item()  # RMS of the latent
    scales = (scales * spread).float().to(device)
    attention.kv_a_proj_with_mqa.weight.mul_(_QUIET)
    attention.kv_a_proj_with_mqa.weight[:rank, :hidden] = whitened
    up = attention.kv_b_proj.weight.view(num_heads, nope + value, -1)
    own = min(rank, sizes.q_lora_rank or rank)  # of the latent's directions, those that the query has, too
    if sizes.q_lora_rank is None:
        queries, latent = attention.q_proj.weight, whitened / spread
    else:
        attention.q_a_proj.weight.mul_(_QUIET)
        attention.q_a_proj.weight[:own, :hidden] = whitened[:own]
        # Its norm makes the squares add up to q_lora_rank; the key has kv_lora_rank * own / rank in these directions.
        match = (sizes.kv_lora_rank * rank / (own * sizes.q_lora_rank)) ** 0.5
        latent = torch.eye(own, sizes.q_lora_rank, device=device) * match
        queries = attention.q_b_proj.weight
    queries = queries.view(num_heads, sizes.key_size, -1)
    queries.mul_(_QUIET)
    for head in range(num_heads):
        first = head * value
        part = min(value, max(0, rank - first))
        # E|R c|^2 = nope * sigma^2 * kv_lora_rank for a latent c of unit RMS.
        sigma = (_SELF_SCORE / (attention.scale * nope * sizes.kv_lora_rank)) ** 0.5
        random = (torch.randn(nope, own, generator=generator) * sigma).to(device)
        up[head, :nope] = 0.0
        up[head, :nope, :own] = random
        queries[head, :nope, : latent.shape[1]] = random @ latent
        up[head, nope : nope + part] = 0.0
        up[head, nope : nope + part, first : first + part] = torch.diag(scales[first : first + part])
        columns = slice(first, first + part)
        attention.o_proj.weight[:, columns] = basis[:, columns].float().to(device)
