"""The ways to attend that ``toptheta evaluate`` compares, one per file.

Add a method:

1. Write a file with three parts, as `last_k` has them: a ``select_...`` function, which returns the keys that a
   row keeps; a function that makes a `Method` from it; and ``KIND`` with its name, its options and that function.
2. Add ``KIND`` to `kinds.KINDS`. ``toptheta evaluate --method NAME``, the figures and the tests pick it up.
3. Add its row to docs/evaluation.md. A test asks for it.
"""
