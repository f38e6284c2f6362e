"""Answers that are taken back after they were given."""

import pytest

from gagpo.envs.math.verify.extract import extract

TAKEN_BACK = [
    # response, the answer that counts (None: no answer)
    ("The answer is 5. Wait, no, it is 6.", "6"),
    ("The answer is 5. Actually, it is 6.", "6"),
    ("The answer is 5. no wait, it's 6", "6"),
    ("The answer is 5. Correction: 6", "6"),
    ("The answer is 5. Correction: the answer is 6.", "6"),
    ("The answer is 5. Hmm, that's wrong. It should be 6.", "6"),
    ("The answer is 5. Sorry, I meant 6.", "6"),
    ("The answer is 5. No, 6.", "6"),
    ("The answer is 5. Scratch that, 6.", "6"),
    ("The answer is 5. On second thought, it is $6$.", "6"),
    ("The answer is 5. Oops, I made a mistake: it is 6.", "6"),
    ("The answer is 5... wait, 6.", "6"),
    ("The answer is 5. Let me recheck. It is 6.", "6"),
    ("The answer is 5. It should be 6 apples.", "6 apples"),
    ("The answer is (A). Wait, it is (B).", "(B)"),
    ("The answer is Tuesday. Wait, no, it is Monday.", "Monday"),
    (r"\boxed{5}. Wait, no, it is 6.", "6"),
    (r"\boxed{5} Actually the answer is $\frac{1}{2}$.", r"\frac{1}{2}"),
    ("#### 5\nWait, no, it is 6.", "6"),
    ("答案是5。不对，应该是6。", "6"),
    ("La réponse est 5. Non, c'est 6.", "6"),
    (r"\boxed{5}. Espera, es 6.", "6"),
    (r"\boxed{5}. Moment, es ist 6.", "6"),
    ("The answer is 5. Wait, that is not right.", None),
    ("The answer is 5. That is incorrect.", None),
    (r"\boxed{5}. I made a mistake.", None),
    # not taken back
    ("The answer is 5. Wait, let me check: 2 + 3 = 5. Yes.", "5"),
    (r"\boxed{5}. Wait, let me check: 2 + 3 = 5. Yes, it is correct.", "5"),
    ("The answer is 5. Wait, is that wrong? No, that is right.", "5"),
    ("The answer is 5. That is wrong... no, it is right.", "5"),
    ("The answer is 5. Actually, 6 of them were lost at first.", "5"),
    ("The answer is 5. Actually, this is 1 less than 6.", "5"),
    ("The answer is 5. There were 6 at first.", "5"),
    ("The answer is 5. If you got 6, that is wrong.", "5"),
    ("The answer is 5. No further steps are needed.", "5"),
    ("The answer is 6. Wait, no, it is 5.", "5"),
]


@pytest.mark.parametrize(("response", "answer"), TAKEN_BACK)
def test_the_answer_that_counts(response, answer):
    results = extract(response)
    assert (results and results.text) == answer


@pytest.mark.parametrize("part", ["wait, ", "no wait ", "it is ", "oh ", "that is wrong. ", "actually ", "....", " - "])
def test_long_responses_take_linear_time(part):
    extract(r"\boxed{5}. " + part * (19_000 // len(part)))
