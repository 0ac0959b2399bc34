"""Parts of the fuzzer: what it mutates, how, and what it watches."""
