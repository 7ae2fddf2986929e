"""Random graphs and damaged files: laws that must hold for all of them.

    python -m tests.fuzz graphs --minutes 10 --state /tmp/graphs.json
    python -m tests.fuzz files --seed 7 --cases 1

Each case comes from a seed alone; with `--state` a later call goes on where one ended.
What fails becomes as small as it can and lies in `corpus` then, where `test_corpus.py`
tries it again. A file there names choices by the numbers that were drawn for them: who
changes what a kind of step or of damage draws, changes what these files mean.

`graphs` builds a Keras model of up to ten random steps, as it is, cloned or loaded, and
puts it through one law, such as: without channels it computes what it does with them
silenced. A difference counts that a rounding of all weights does not explain.
`files` damages a sound file and reads it in a forked child with 6 GiB and 20 seconds:
it has to be read, or refused in one line, in 750 MiB, and nothing may be executed.
`states` changes folders that kerasmem resumes from, reads or writes into. See
`tests/fuzz/states/__init__.py`.
"""
