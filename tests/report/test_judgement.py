import math
import re
from dataclasses import replace

import pytest

from fewbits.errors import ArgumentError
from fewbits.records import TaskScore
from fewbits.report import judgement as j
from fewbits.report.columns.tasks import task_columns
from fewbits.train.tasks.faint_task import faint_task
from tests.report import fake


def of(task: str, name: str) -> TaskScore:
    return next(s for s in fake.tasks() if (s.task, s.format) == (task, name))


def test_fp32_comes_first_and_then_few_bits_before_many() -> None:
    groups = j.by_task(list(reversed(fake.tasks())))
    assert list(groups) == ["digits", "bytes"]
    for group in groups.values():
        assert group[0].format == "fp32"
        widths = [s.bits_per_value for s in group[1:]]
        assert widths == sorted(widths)


def test_a_difference_is_judged_by_its_paired_interval_and_not_by_what_seeds_do_to_both() -> None:
    score = of("bytes", "mxfp6_e2m3")
    # FP32 alone moves by 0.0053 over these seeds; the format adds 0.0014 to 0.0020 to each.
    assert max(score.baseline) - min(score.baseline) > 2 * score.difference
    assert j.task_verdict(score) == "worse"
    assert j.task_verdict(replace(score, values=tuple(b - 0.001 for b in score.baseline))) == "better"
    scattered = replace(score, values=tuple(b + d for b, d in zip(score.baseline, (5, -3, 4), strict=True)))
    assert j.task_verdict(scattered) == ""
    assert j.task_verdict(replace(score, values=(math.nan,) * 3)) == "worse"
    assert j.task_verdict(replace(of("digits", "mx4"), values=(math.nan, 98.0, 98.0))) == "worse"
    accuracy = of("digits", "mx4")
    assert j.task_verdict(accuracy) == "worse"
    assert j.task_verdict(replace(accuracy, values=(98.9, 99.3, 99.2))) == "better"


def test_one_image_over_two_seeds_is_no_evidence() -> None:
    score = replace(of("digits", "mx4"), baseline=(97.0, 98.0), resolution=0.125)
    for sign in (1, -1):
        assert j.task_verdict(replace(score, values=(97.0 + sign / 8, 98.0 + sign / 8))) == ""
    # The control: a rule that does not know how fine the metric is takes two equal differences for certain.
    assert j.task_verdict(replace(score, values=(97.125, 98.125), resolution=0.0)) == "better"


def test_one_seed_marks_nothing_and_says_why() -> None:
    scores = fake.tasks(1)
    assert not any(j.task_verdict(s) for s in scores)
    assert "One seed ran" in j.evidence_of(scores)
    assert j.narrowest_sentence(scores) == ""


def test_a_model_of_ones_own_is_not_told_to_take_seeds() -> None:
    scores = [replace(s, task="module:function", metric="loss") for s in fake.tasks(1)]
    said = "The model has one set of weights, and no difference here is evidence."
    assert j.evidence_of(scores) == said == j.evidence_of([replace(s, metric="rmse") for s in scores])
    assert "paired over 3 seeds" in j.evidence_of([replace(s, metric="loss") for s in fake.tasks()])


def test_the_sentences_say_how_many_seeds_it_takes_and_name_the_narrowest_format() -> None:
    scores = j.by_task(fake.tasks())["bytes"]
    assert "paired over 3 seeds" in j.evidence_of(scores)
    assert "Seeds that" not in j.evidence_of(scores)
    near = [replace(s, values=(s.baseline[0] + 0.02, s.baseline[1], s.baseline[2])) for s in scores[:3]]
    assert f"if they go on so: {near[1].format} 15, {near[2].format} 15." in j.evidence_of(near)
    scores[1] = replace(scores[1], values=near[1].values)
    assert j.narrowest_sentence(scores) == (
        f"Narrowest format without evidence of a loss: {scores[1].format}, 4.00 bits per value;"
        " it may lose up to 0.0354 nats/byte."
    )
    broken = [replace(s, values=(9.0, 9.0, 9.0)) for s in scores]
    assert j.narrowest_sentence(broken) == "Every format narrower than FP32 loses."
    assert j.narrowest_sentence(scores[:1]) == ""


def test_quality_is_higher_for_what_is_better_on_both_metrics() -> None:
    for task in ("bytes", "digits"):
        assert j.quality(of(task, "mx4")) < j.quality(of(task, "mxfp4")) < 0


def test_a_metric_of_a_task_of_ones_own_is_written_as_it_is_and_judged_by_its_direction() -> None:
    for lower_is_better in (True, False):
        score = replace(of("bytes", "mx4"), metric="bleu", lower_is_better=lower_is_better)
        assert j.metric_of(score).heading == "bleu"
        assert j.task_verdict(score) == ("worse" if lower_is_better else "better")  # it is above FP32's
        assert not re.search(r" [;,.]|, in [;.]", " ".join(c.about for c in task_columns([score])))
    assert re.search(r"may lose up to 0\.0000\.$", j.narrowest_sentence([score]))


def test_the_likelihood_of_images_is_not_that_of_bytes() -> None:
    assert faint_task().metric == "image_nll"
    assert j.metric_named("image_nll", lower_is_better=True).heading.endswith("nats/image")


def test_empty_reports_are_refused_in_a_sentence() -> None:
    for group in (j.by_task, j.by_matrix):
        with pytest.raises(ArgumentError, match="a report of no scores"):
            group([])


def test_the_total_says_what_the_checkpoint_would_weigh() -> None:
    report = fake.checkpoint()
    weighs = "The whole checkpoint would weigh 361 MiB instead of 938 MiB, 2.60 times less. "
    assert j.totals_sentence(report) == weighs + (
        "The mean QSNR of its tensors is then 27.5 dB. That does not say what its outputs lose:"
        " tensors of one QSNR differ widely in what they do to a model. --model measures it."
    )
    through = replace(report, model="m.py", output_qsnr_db=31.26)
    assert j.totals_sentence(through) == weighs + (
        "The outputs of m.py then have 31.3 dB, measured with its weights rounded and nothing else."
    )
    assert "times less" not in j.totals_sentence(replace(report, tensors=report.tensors[-1:]))


def test_a_checkpoint_of_which_nothing_changes_is_told_so() -> None:
    report = fake.checkpoint()
    as_it_is = [replace(t, proposed=None, proposed_bytes=t.stored_bytes) for t in report.tensors]
    kept = replace(report, tensors=tuple(as_it_is))
    assert j.totals_sentence(kept).endswith(". No value of its tensors then changes.")
    assert j.totals_sentence(replace(kept, model="m:f", output_qsnr_db=math.inf)).endswith(
        "stay as they are."
    )
