"""Random graphs and damaged files: laws that must hold for all of them.

`python -m tests.fuzz graphs|files --minutes N` looks for what breaks; what is in
`corpus` broke once, and is tried again by `test_corpus.py`.
"""
