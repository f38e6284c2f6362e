"""Training: the loop and its parts. The life of a turn, from a task to a number on a page::

        stop             file                               what travels on
        ---------------  ---------------------------------  --------------------------------------------
        task             envs/tasks.py                      Task
          |
        observation <-+  envs/pool/pool.py                  text, reward, info
          |           |
        prompt        |  agents/context.py                  token ids: all that the engine reads
          |           |
    +-> response      |  agents/engines/base.py             Response: token ids, log-probabilities
    |     |           |
    |   Turn ---------+  agents/agent.py                    Turn; its action goes to the world
    |     |
    |   Episode          agents/rollout.py                  Episode, when the world has ended it
    |     |
    |   group            gagpo/collecting/collector.py      Collection: the episodes of an iteration
    |     |
    |   state keys       gagpo/credit/turns/columns.py      Turns: columns with one entry per turn
    |     |
    |   credit           gagpo/credit/assign.py             Credit: one advantage per turn
    |     |
    |   rows             gagpo/learning/batch.py            Row: one token sequence, shared prefixes once
    |     |
    |   micro-batches    gagpo/learning/packing.py          MicroBatch: what a forward pass reads, each beginning once
    |     |
    |   log-probs        gagpo/learning/logprobs.py         one per response token, with its entropy
    |     |
    |   objective        gagpo/objectives/policy.py         a loss
    |     |
    |   step             gagpo/learning/update.py           weights, and numbers about them
    |     |
    +-- engine           agents/engines/weights.py          named tensors
          |
        numbers          gagpo/training/recorder.py         metrics.jsonl, episodes/*.jsonl, evals/*.json
          |
        page             eval/report/report.py              report.html; eval/viewer/export.py: the viewer

docs/life-of-a-turn.md says of every stop what may go wrong there. A test keeps both true.
"""
