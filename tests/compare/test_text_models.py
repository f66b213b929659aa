"""Models of text in Python: the mode they are evaluated in, and what is refused beforehand."""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fewbits.compare import Classification, Perplexity, compare_text_model
from fewbits.errors import ArgumentError

PIECES = torch.arange(24).reshape(3, 8) % 11


class Words(nn.Module):
    """A language model of one layer, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.dropout, self.head = nn.Embedding(11, 32), nn.Dropout(0.5), nn.Linear(32, 11)

    def forward(self, input_ids: Tensor, use_cache: bool = False) -> SimpleNamespace:
        return SimpleNamespace(logits=self.head(self.dropout(self.embedding(input_ids))))


def test_a_model_in_training_is_evaluated_without_dropout_and_left_in_training() -> None:
    torch.manual_seed(0)
    model = Words().train()
    model.embedding.eval()
    (score,) = compare_text_model(model, Perplexity(PIECES), formats=["fp32"])
    with torch.no_grad():
        logits = model.head(model.embedding(PIECES))[:, :-1].double()
    expected = [functional.cross_entropy(a, b[1:]).item() for a, b in zip(logits, PIECES, strict=True)]
    assert score.values == score.baseline == pytest.approx(expected)
    assert [m.training for m in (model, model.embedding, model.dropout)] == [True, False, True]


def test_nothing_to_measure_and_classes_of_other_lines_are_refused() -> None:
    with pytest.raises(ArgumentError, match="no formats to measure"):
        compare_text_model(Words(), Perplexity(PIECES), formats=[])
    lines = [{"input_ids": line[None]} for line in PIECES]
    for labels in ([1], [1, 2], [1, 2, 0, 1]):
        with pytest.raises(ArgumentError, match=f"{len(labels)} classes of 3 lines; expected one for each"):
            Classification(lines, labels)
    with pytest.raises(ArgumentError, match="no lines to evaluate"):
        Classification([])
    for shape in ((0, 8), (3, 1), (8,)):
        with pytest.raises(ArgumentError, match=r"pieces of shape .*; expected \(pieces, tokens\)"):
            Perplexity(torch.zeros(shape, dtype=torch.long))


def test_logits_that_did_not_change_have_no_error_even_if_they_are_all_zero() -> None:
    zeros, ones = torch.zeros(2, 3).double(), torch.ones(2, 3).double()
    lines = Classification([{"input_ids": torch.zeros(1, 4)}] * 2)
    assert lines.logit_error(zeros, zeros) == lines.logit_error(ones, ones) == 0.0
    assert lines.logit_error(ones, zeros) == torch.inf
    assert lines.logit_error(1.5 * ones, ones) == 0.5
    assert lines.logit_error(torch.nan * ones, ones) != lines.logit_error(torch.nan * ones, ones)
