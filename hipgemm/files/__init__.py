"""Files of arrays in the safetensors format, and the layouts of published checkpoints."""
