"""The ways to attend that are compared, a file each.

Add a method:

1. Write a file with three parts, as `last_k` has them: a ``select_...`` function, the rule that says which elements a
   row keeps; a function that makes the `Method` of it; and ``KIND``: its name, its options and how it is made.
2. Put its ``KIND`` into `kinds.KINDS`.

``toptheta evaluate --method NAME``, the figures and the tests of all methods then have it. A test
asks for its row in docs/evaluation.md.
"""
