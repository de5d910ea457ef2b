"""The operators on CPUs: a kernel in C++ that is compiled on the machine that runs it.

Importing this package imports no compiled code and builds nothing.
"""
