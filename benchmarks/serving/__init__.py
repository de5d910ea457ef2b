"""vLLM with the plug-in on the embedded model; needs the environment of ``make test-vllm``."""
