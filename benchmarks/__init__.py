"""Every measurement of the library, and the papers' tables and figures by number: `python -m benchmarks`."""
