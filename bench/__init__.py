"""Benchmarks for the targets of the design: `make bench`, or one with `python -m bench.<name> --help`.

Each brings its own server (Valkey, fsync on every write) and its own worker processes, prints how a figure was got,
and compares with something measured in the same run: figures of a shared machine mean little by themselves.
"""
