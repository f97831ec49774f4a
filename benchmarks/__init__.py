"""Benchmarks of scvcc beside other clustering methods, on public data.

`python -m benchmarks.run` measures what is not yet in `benchmarks/results/runs.csv`,
`python -m benchmarks.report` writes the tables and figures of the documentation from it.
"""
